"""The index, the files and the records of the zoo agree, and the networks have the recorded accuracy."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import lcrbnn
from lcrbnn.cli.main import main
from lcrbnn.cli.train import add_arguments
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import load_digits, read_digits
from lcrbnn.deploy.engine.bnn_file import read_model
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.recipes.recipe import find_recipe
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train
from lcrbnn.zoo import zoo_index as index
from lcrbnn.zoo.zoo_file import ZooNetwork, load_member, read_zoo_file
from lcrbnn.zoo.zoo_index import ZooMember, list_members
from lcrbnn.zoo.zoo_model import compute_probe_logits, evaluate_zoo_file
from tests.data.image_folders import make_image_files, write_zip
from tests.runs.helpers import write_without_digest
from tools.zoo import add_run_to_zoo

ROOT = Path(__file__).parents[2]
MEMBERS = list_members()
SMALL_MEMBER = "digits-resnet8-irnet"
# Maximum file size by model.
MAX_FILE_BYTES = {"resnet8": 25_000, "resnet20": 60_000, "resnet18": 2_200_000}
# Percentage points by which the accuracy on 1,000 images may differ between processors: float32 sums are rounded
# differently, so that signs of numbers near 0 flip.
ACCURACY_TOLERANCE = 0.3

parametrize_members = pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.name)


def test_the_index_lists_exactly_the_files() -> None:
    wheel_files = {path.name: path.stat().st_size for path in (index.ZOO_FOLDER / "files").iterdir()}
    large_files = {path.name: path.stat().st_size for path in (ROOT / index.LARGE_FILES_FOLDER).iterdir()}
    assert wheel_files.keys() | large_files.keys() == {f"{name}.safetensors" for name in MEMBERS}
    assert max(wheel_files.values()) <= index.MAX_BYTES_IN_WHEEL < min(large_files.values())
    assert sum(wheel_files.values()) < 1_000_000  # the wheel must stay under 4 MB
    records = {path.name for path in (ROOT / "bench" / "records" / "zoo").iterdir()}
    assert records == {f"{name}.json" for name in MEMBERS}


@parametrize_members
def test_a_file_matches_its_record(member: ZooMember) -> None:
    content = member.path.read_bytes()
    record = json.loads((ROOT / member.record).read_text())
    (test_result,) = record["readings"]
    assert len(content) == member.bytes == record["figures"]["bytes"] < MAX_FILE_BYTES[member.model.split("-")[0]]
    assert hashlib.sha256(content).hexdigest() == member.sha256 == record["figures"]["sha256"] == test_result["sha256"]
    assert (test_result["split"], test_result["images"]) == ("test", member.images)
    assert member.top1 == round(test_result["top1"], 2)
    network = read_zoo_file(member.path)
    assert network.spec == TrainSpec.from_dict(record["settings"])
    assert (network.spec.model, network.spec.dataset) == (member.model, member.dataset)
    assert network.checkpoint_sha256 == record["figures"]["checkpoint_sha256"]
    assert (member.lcr == "none") == (not network.spec.uses_lcr)


@parametrize_members
def test_the_mean_of_all_seeds_matches_the_records(member: ZooMember) -> None:
    spec = read_zoo_file(member.path).spec
    top1 = []
    for path in sorted((ROOT / "paper" / "results").glob("cifar10-*/*/seed-*.json")):
        record = json.loads(path.read_text())
        if record.get("kind") == "train" and TrainSpec.from_dict(record["settings"]).replace(seed=spec.seed) == spec:
            top1 += [one["top1"] for one in record.get("readings", [])[:1] if one["split"] == "test"]
    assert member.seed == spec.seed
    if member.mean_top1 is None:
        assert (member.runs, top1) == (1, [])
    else:
        assert member.runs == len(top1)
        assert member.mean_top1 == round(statistics.fmean(top1), 2)


def test_the_note_of_resnet20_gives_the_mean_gain_because_seed_0_has_the_largest() -> None:
    gains = {}
    for seed in range(8):
        without_lcr, with_lcr = (
            json.loads((ROOT / "paper" / "results" / "cifar10-double" / arm / f"seed-{seed}.json").read_text())[
                "readings"
            ][0]
            for arm in ("none", "default")
        )
        gains[seed] = with_lcr["top1"] - without_lcr["top1"]
    member = MEMBERS["resnet20-double-irnet-lcr"]
    assert max(gains, key=lambda seed: gains[seed]) == member.seed == 0
    assert f"mean gain is {sum(gains.values()) / 8:+.2f} points" in member.note


def test_a_large_file_that_is_not_installed_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = MEMBERS["resnet18-irnet"]
    monkeypatch.setattr(index, "ZOO_FOLDER", tmp_path / "lcrbnn" / "zoo")
    with pytest.raises(lcrbnn.InputError, match="is missing: networks as large as 1,789,588 bytes are not installed"):
        load_member(member)


@parametrize_members
def test_the_training_command_gives_the_spec_of_the_file(member: ZooMember) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    program, command, recipe, *options = member.train_command.split()
    assert (program, command) == ("lcrbnn", "train")
    args = parser.parse_args([recipe, *options])  # the command can be copied to a shell
    assert args.run_folder == Path("runs") / member.name
    changes = {field.name: getattr(args, field.name) for field in fields(TrainSpec) if hasattr(args, field.name)}
    assert find_recipe(recipe).spec.replace(**changes) == read_zoo_file(member.path).spec


@parametrize_members
def test_probe_logits_match_the_record(member: ZooMember) -> None:
    record = json.loads((ROOT / member.record).read_text())
    logits = compute_probe_logits(read_zoo_file(member.path).model, DATASETS[member.dataset])
    np.testing.assert_allclose(logits, record["figures"]["drawn"], atol=1e-6)


@parametrize_members
def test_the_accuracy_on_a_sample_matches_the_record(member: ZooMember) -> None:
    if member.dataset != "digits" and "LCRBNN_DATA" not in os.environ:
        pytest.skip("the data set is not available")  # CIFAR-10 is not committed
    expected = json.loads((ROOT / member.record).read_text())["figures"]["sample"]
    accuracy = evaluate_zoo_file(read_zoo_file(member.path), RunOptions(device="cpu"), 1)
    assert accuracy.images == expected["images"]
    assert accuracy.top1 == pytest.approx(expected["top1"], abs=ACCURACY_TOLERANCE)


def test_zoo_eval_and_predict_use_zoo_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    output = capsys.readouterr().out
    for member in MEMBERS.values():
        for text in (
            member.name,
            f"{member.top1:.2f} %",
            f"{member.bytes:,} bytes",
            member.train_command,
            member.record,
        ):
            assert text in output
        if member.mean_top1 is not None:
            assert (
                f"seed {member.seed}; mean of all {member.runs} seeds, as trained: {member.mean_top1:.2f} %" in output
            )
        assert member.note in output
    assert main(["eval", f"zoo:{SMALL_MEMBER}", "--device", "cpu"]) == 0
    listed_top1 = MEMBERS[SMALL_MEMBER].top1
    output = capsys.readouterr().out
    assert f"500 test images; the index has {listed_top1:.2f} %" in output
    assert float(output.split("top-1 ")[1].split(" ")[0]) == pytest.approx(listed_top1, abs=ACCURACY_TOLERANCE)
    test = read_digits().test
    for i in range(3):
        Image.fromarray(np.round(test.images[i, 0] * (255 / 16)).astype(np.uint8)).save(tmp_path / f"{i}.png")
    assert main(["predict", f"zoo:{SMALL_MEMBER}", str(tmp_path)]) == 0
    labels = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert labels == [str(label) for label in test.labels[:3]]


def test_a_zoo_member_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"zoo:{SMALL_MEMBER}", "-o", str(tmp_path / "a.bnn")]) == 0
    assert "weights of 1 bit" in capsys.readouterr().out
    assert read_model(tmp_path / "a.bnn").name == "resnet8-double irnet digits"


@pytest.mark.parametrize(
    "arguments", [["eval", "zoo:digit"], ["predict", "zoo:digit", "a.png"], ["export", "zoo:digit", "-o", "a.bnn"]]
)
def test_an_unknown_name_is_rejected_with_the_known_names(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "no network of the zoo is called 'digit' (" in capsys.readouterr().err


def test_a_file_with_another_sha256_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even an undamaged file of another network is rejected, because the listed accuracy is not its own."""
    (tmp_path / "files").mkdir()
    (tmp_path / "index.json").write_bytes((index.ZOO_FOLDER / "index.json").read_bytes())
    (tmp_path / "files" / f"{SMALL_MEMBER}.safetensors").write_bytes(MEMBERS["resnet20-irnet"].path.read_bytes())
    monkeypatch.setattr(index, "ZOO_FOLDER", tmp_path)
    for arguments in (
        ["eval", f"zoo:{SMALL_MEMBER}"],
        ["predict", f"zoo:{SMALL_MEMBER}", "a.png"],
        ["export", f"zoo:{SMALL_MEMBER}", "-o", "a.bnn"],
    ):
        assert main(arguments) == 2
        assert f"{SMALL_MEMBER}.safetensors is not the listed file: its SHA-256" in capsys.readouterr().err
    with pytest.raises(lcrbnn.InputError, match="is not the listed file"):
        lcrbnn.zoo.load(SMALL_MEMBER)


def test_a_zoo_network_can_be_trained_further() -> None:
    net = lcrbnn.zoo.load(SMALL_MEMBER)
    train, _ = load_digits()
    images, labels = torch.from_numpy(train.images[:256]), torch.from_numpy(train.labels[:256])
    labels = (labels + 1) % 10  # a different task
    layers = [m for m in net.modules() if isinstance(m, BinaryLayer)]
    signs_before = torch.cat([layer.weight.detach().flatten() < 0 for layer in layers])
    scales_before = [layer.weight_binarizer.scale.clone() for layer in layers]
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(net.train()(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    signs_after = torch.cat([layer.weight.detach().flatten() < 0 for layer in layers])
    assert 0 < (signs_before != signs_after).sum() < 0.2 * len(signs_before)
    assert all(torch.equal(a, layer.weight_binarizer.scale) for a, layer in zip(scales_before, layers, strict=True))


def test_only_finished_runs_with_new_names_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "ZOO_FOLDER", tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "index.json").write_text("[]")
    options = RunOptions(device="cpu")
    spec = find_recipe("digits").spec.replace(
        epochs=1, batch_size=250, lcr_gradient_ratio=0.1, lcr_options=["beta=1"], nesterov=True
    )
    train(spec, tmp_path / "run", options)

    def add(name: str) -> ZooMember:
        return add_run_to_zoo(tmp_path / "run", name, "digits", tmp_path / "records", options)

    with pytest.raises(lcrbnn.InputError, match="device"):
        add_run_to_zoo(tmp_path / "run", "one", "digits", tmp_path / "records", RunOptions(device="none"))
    assert not list((tmp_path / "zoo").rglob("*.safetensors"))
    member = add("one")
    assert list_members() == {"one": member}
    options_text = "--lcr-gradient-ratio 0.1 --lcr-options beta=1 --epochs 1 --batch-size 250 --nesterov"
    assert member.train_command == f"lcrbnn train digits {options_text} --run-folder runs/one"
    assert member.lcr == "default, gradient ratio 0.1, beta=1"
    assert (tmp_path / "records" / "one.json").exists()
    with pytest.raises(lcrbnn.InputError, match="the zoo has a network 'one' already"):
        add("one")
    with pytest.raises(lcrbnn.InputError, match="small letters, digits, dots and dashes; got 'A b'"):
        add("A b")
    with pytest.raises(lcrbnn.InputError, match="small letters, digits, dots and dashes; got 'one/two'"):
        add("one/two")
    second_member = add("more")
    assert list_members() == {"one": member, "more": second_member}
    record = tmp_path / "run" / "record.json"
    write_without_digest(
        record, json.loads(record.read_text().replace(read_zoo_file(member.path).checkpoint_sha256, "0" * 64))
    )
    with pytest.raises(lcrbnn.InputError, match="is not the one in its record"):
        add("two")
    record.unlink()
    with pytest.raises(lcrbnn.InputError, match="is not finished; only finished runs can be added"):
        add("two")
    assert list(list_members()) == ["more", "one"]
    assert sorted(path.stem for path in (tmp_path / "zoo" / "files").iterdir()) == ["more", "one"]


def test_a_network_for_image_folders_is_evaluated_at_its_image_size(tmp_path: Path) -> None:
    images = write_zip(make_image_files(train=4, val=2), tmp_path / "images.zip")
    spec = TrainSpec(
        dataset="folder", image_size=16, num_classes=3, method="xnor++"
    )  # it has a scale for each place in an image
    network = ZooNetwork(spec, build_network(spec), "")
    assert evaluate_zoo_file(network, RunOptions(device="cpu", data_folder=images)).images == 6
