"""The networks that come with the package: the list, the files and the records agree, and the figures are theirs."""

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
from lcrbnn.cli import main
from lcrbnn.cli.train import add_arguments
from lcrbnn.data import DATASETS, load_digits
from lcrbnn.data.digits import read_digits
from lcrbnn.engine.format import read_model
from lcrbnn.layers import BinaryLayer
from lcrbnn.train import Spec
from lcrbnn.train.build import build_network
from lcrbnn.train.options import Options
from lcrbnn.train.recipes import find_recipe
from lcrbnn.train.run import train
from lcrbnn.zoo import index
from lcrbnn.zoo.add import add_run
from lcrbnn.zoo.file import Small, read_member, read_small
from lcrbnn.zoo.index import Member, members
from lcrbnn.zoo.measure import drawn_logits, read_test
from tests.data.trees import as_zip, generated
from tests.runs.helpers import write_without_digest

ROOT = Path(__file__).parents[2]
MEMBERS = members()
SMALL = "digits-resnet8-irnet"
# Most bytes of a file, and points by which a thousand images may differ on another processor: float32 sums are rounded
# elsewhere, signs of numbers near 0 flip.
MOST = {"resnet8": 25_000, "resnet20": 60_000, "resnet18": 2_200_000}
ROUNDING = 0.3

every = pytest.mark.parametrize("member", MEMBERS.values(), ids=lambda m: m.name)


def test_the_list_has_every_file_and_no_other() -> None:
    inside = {path.name: path.stat().st_size for path in (index.FOLDER / "files").iterdir()}
    outside = {path.name: path.stat().st_size for path in (ROOT / index.OUTSIDE_WHEEL).iterdir()}
    assert inside.keys() | outside.keys() == {f"{name}.safetensors" for name in MEMBERS}
    assert max(inside.values()) <= index.MAX_BYTES_IN_WHEEL < min(outside.values())
    assert sum(inside.values()) < 1_000_000  # the wheel has to stay under 4 MB
    records = {path.name for path in (ROOT / "results" / "zoo").iterdir()}
    assert records == {f"{name}.json" for name in MEMBERS}


@every
def test_a_file_is_the_one_that_was_read_and_recorded(member: Member) -> None:
    content = member.path.read_bytes()
    record = json.loads((ROOT / member.record).read_text())
    (reading,) = record["readings"]
    assert len(content) == member.bytes == record["figures"]["bytes"] < MOST[member.network.split("-")[0]]
    assert hashlib.sha256(content).hexdigest() == member.sha256 == record["figures"]["sha256"] == reading["sha256"]
    assert (reading["split"], reading["images"]) == ("test", member.images)
    assert member.top1 == round(reading["top1"], 2)
    small = read_small(member.path)
    assert small.spec == Spec.of(record["settings"])
    assert (small.spec.model, small.spec.data) == (member.network, member.data)
    assert small.checkpoint == record["figures"]["checkpoint_sha256"]
    assert (member.retention == "none") == (not small.spec.retains)


@every
def test_the_document_has_the_figures_of_the_record(member: Member) -> None:
    record = json.loads((ROOT / member.record).read_text())
    read = record["figures"]["as_trained"]
    trained = "not read" if read is None else f"{read['top1']:.2f} % ({record['settings']['precision']})"
    mean = "–" if member.mean_top1 is None else f"{member.mean_top1:.2f} % ({member.runs} runs)"
    row = f"| `{member.name}` | {member.seed} | {trained} | {member.top1:.2f} % | {mean} | {member.bytes:,} |"
    assert row in (ROOT / "docs" / "zoo.md").read_text()


@every
def test_the_mean_of_all_seeds_is_that_of_the_records_of_the_same_settings(member: Member) -> None:
    spec = read_small(member.path).spec
    top1 = []
    for path in sorted((ROOT / "results").glob("cifar10-*/*/seed-*.json")):
        record = json.loads(path.read_text())
        if record.get("kind") == "train" and Spec.of(record["settings"]).but(seed=spec.seed) == spec:
            top1 += [one["top1"] for one in record.get("readings", [])[:1] if one["split"] == "test"]
    assert member.seed == spec.seed
    if member.mean_top1 is None:
        assert (member.runs, top1) == (1, [])
    else:
        assert member.runs == len(top1)
        assert member.mean_top1 == round(statistics.fmean(top1), 2)


def test_seed_0_of_resnet20_says_that_it_has_the_largest_gain() -> None:
    gains = {}
    for seed in range(8):
        without, given = (
            json.loads((ROOT / "results" / "cifar10-double" / arm / f"seed-{seed}.json").read_text())["readings"][0]
            for arm in ("none", "default")
        )
        gains[seed] = given["top1"] - without["top1"]
    member = MEMBERS["resnet20-double-irnet-lcr"]
    assert max(gains, key=lambda seed: gains[seed]) == member.seed == 0
    assert f"mean gain is {sum(gains.values()) / 8:+.2f} points" in member.note


def test_a_large_file_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = MEMBERS["resnet18-irnet"]
    monkeypatch.setattr(index, "FOLDER", tmp_path / "lcrbnn" / "zoo")
    with pytest.raises(lcrbnn.InputError, match="is missing: a network of 1,789,588 bytes is not installed"):
        read_member(member)


@every
def test_the_command_of_the_list_trains_the_spec_of_the_file(member: Member) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    lcr, word, recipe, *settings = member.recipe.split()
    assert (lcr, word) == ("lcrbnn", "train")
    args = parser.parse_args([recipe, *settings])  # as it can be pasted
    assert args.run == Path("runs") / member.name
    given = {one.name: getattr(args, one.name) for one in fields(Spec) if hasattr(args, one.name)}
    assert find_recipe(recipe).spec.but(**given) == read_small(member.path).spec


@every
def test_drawn_images_are_answered_as_the_record_says(member: Member) -> None:
    record = json.loads((ROOT / member.record).read_text())
    found = drawn_logits(read_small(member.path).model, DATASETS[member.data])
    np.testing.assert_allclose(found, record["figures"]["drawn"], atol=1e-6)


@every
def test_a_sample_of_the_test_images_gives_the_recorded_figure(member: Member) -> None:
    if member.data != "digits" and "LCRBNN_DATA" not in os.environ:
        pytest.skip("its images are not at hand")  # CIFAR-10 is not committed
    wanted = json.loads((ROOT / member.record).read_text())["figures"]["sample"]
    found = read_test(read_small(member.path), Options(device="cpu"), 1)
    assert found.images == wanted["images"]
    assert found.top1 == pytest.approx(wanted["top1"], abs=ROUNDING)


def test_the_commands_list_read_and_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    said = capsys.readouterr().out
    for member in MEMBERS.values():
        for word in (member.name, f"{member.top1:.2f} %", f"{member.bytes:,} bytes", member.recipe, member.record):
            assert word in said
        if member.mean_top1 is not None:
            assert f"seed {member.seed}; mean of all {member.runs} seeds, as trained: {member.mean_top1:.2f} %" in said
        assert member.note in said
    assert main(["eval", f"zoo:{SMALL}", "--device", "cpu"]) == 0
    listed = MEMBERS[SMALL].top1
    said = capsys.readouterr().out
    assert f"500 test images; listed with {listed:.2f} %" in said
    assert float(said.split("top-1 ")[1].split(" ")[0]) == pytest.approx(listed, abs=ROUNDING)
    test = read_digits().test
    for i in range(3):
        Image.fromarray(np.round(test.images[i, 0] * (255 / 16)).astype(np.uint8)).save(tmp_path / f"{i}.png")
    assert main(["predict", f"zoo:{SMALL}", str(tmp_path)]) == 0
    labels = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert labels == [str(label) for label in test.labels[:3]]


def test_a_member_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"zoo:{SMALL}", "-o", str(tmp_path / "a.bnn")]) == 0
    assert "weights of one bit" in capsys.readouterr().out
    assert read_model(tmp_path / "a.bnn").name == "resnet8-double irnet digits"


@pytest.mark.parametrize(
    "words", [["eval", "zoo:digit"], ["predict", "zoo:digit", "a.png"], ["export", "zoo:digit", "-o", "a.bnn"]]
)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "no network of the zoo is called 'digit'; there are" in capsys.readouterr().err


def test_a_file_that_is_not_the_listed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be whole, and still another network: the list's figure would not be its own."""
    (tmp_path / "files").mkdir()
    (tmp_path / "index.json").write_bytes((index.FOLDER / "index.json").read_bytes())
    (tmp_path / "files" / f"{SMALL}.safetensors").write_bytes(MEMBERS["resnet20-irnet"].path.read_bytes())
    monkeypatch.setattr(index, "FOLDER", tmp_path)
    for words in (
        ["eval", f"zoo:{SMALL}"],
        ["predict", f"zoo:{SMALL}", "a.png"],
        ["export", f"zoo:{SMALL}", "-o", "a.bnn"],
    ):
        assert main(words) == 2
        assert f"{SMALL}.safetensors is not the file of the list: its SHA-256" in capsys.readouterr().err
    with pytest.raises(lcrbnn.InputError, match="not the file of the list"):
        lcrbnn.zoo.load(SMALL)


def test_a_network_of_the_zoo_can_be_trained_on() -> None:
    net = lcrbnn.zoo.load(SMALL)
    train, _ = load_digits()
    images, labels = torch.from_numpy(train.images[:256]), torch.from_numpy(train.labels[:256])
    labels = (labels + 1) % 10  # another task
    layers = [m for m in net.modules() if isinstance(m, BinaryLayer)]
    before = torch.cat([layer.weight.detach().flatten() < 0 for layer in layers])
    scales = [layer.weight_binarizer.scale.clone() for layer in layers]
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(net.train()(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    after = torch.cat([layer.weight.detach().flatten() < 0 for layer in layers])
    assert 0 < (before != after).sum() < 0.2 * len(before)
    assert all(torch.equal(a, layer.weight_binarizer.scale) for a, layer in zip(scales, layers, strict=True))


def test_a_finished_run_is_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FOLDER", tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "index.json").write_text("[]")
    options = Options(device="cpu")
    spec = find_recipe("digits").spec.but(epochs=1, batch=250, share=0.1, form_options=["beta=1"], nesterov=True)
    train(spec, tmp_path / "run", options)

    def add(name: str) -> Member:
        return add_run(tmp_path / "run", name, "digits", tmp_path / "records", options)

    with pytest.raises(lcrbnn.InputError, match="device"):
        add_run(tmp_path / "run", "one", "digits", tmp_path / "records", Options(device="none"))
    assert not list((tmp_path / "zoo").rglob("*.safetensors"))
    member = add("one")
    assert members() == {"one": member}
    settings = "--share 0.1 --form-options beta=1 --epochs 1 --batch 250 --nesterov"
    assert member.recipe == f"lcrbnn train digits {settings} --run runs/one"
    assert member.retention == "default share 0.1 beta=1"
    assert (tmp_path / "records" / "one.json").exists()
    with pytest.raises(lcrbnn.InputError, match="the zoo has a network 'one' already"):
        add("one")
    with pytest.raises(lcrbnn.InputError, match="small letters, digits, dots and dashes; got 'A b'"):
        add("A b")
    with pytest.raises(lcrbnn.InputError, match="small letters, digits, dots and dashes; got 'one/two'"):
        add("one/two")
    more = add("more")
    assert members() == {"one": member, "more": more}
    record = tmp_path / "run" / "record.json"
    write_without_digest(record, json.loads(record.read_text().replace(read_small(member.path).checkpoint, "0" * 64)))
    with pytest.raises(lcrbnn.InputError, match="is not the one that its record is of"):
        add("two")
    record.unlink()
    with pytest.raises(lcrbnn.InputError, match="is not finished: the zoo is for finished runs"):
        add("two")
    assert list(members()) == ["more", "one"]
    assert sorted(path.stem for path in (tmp_path / "zoo" / "files").iterdir()) == ["more", "one"]


def test_a_network_of_pictures_is_read_at_their_size(tmp_path: Path) -> None:
    images = as_zip(generated(train=4, val=2), tmp_path / "images.zip")
    spec = Spec(data="folder", side=16, classes=3, method="xnor++")  # it has a scale for each place in an image
    small = Small(spec, build_network(spec), "")
    assert read_test(small, Options(device="cpu", data_folder=images)).images == 6
