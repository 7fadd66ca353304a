"""`lcrbnn analyze`, `attack` and `cost`: records, tables and one-line error messages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from lcrbnn.cli.main import main
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.data.split import ImageArrays
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis import analyze as analyze_module
from lcrbnn.evaluation.attacks import run_attacks as run_attacks
from lcrbnn.evaluation.attacks.run_attacks import parse_eps
from lcrbnn.evaluation.seed_groups import find_groups, render_group_comparison
from lcrbnn.runs.record import read_record
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from tests.runs.helpers import write_without_digest
from tests.train.helpers import train_small_run

ANALYZE_OPTIONS = ("--num-images", "20", "--device", "cpu")
ATTACK_OPTIONS = (
    "--num-images",
    "12",
    "--steps",
    "4",
    "--restarts",
    "1",
    "--queries",
    "20",
    "--eps",
    "8/255",
    "--device",
    "cpu",
)


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for variant, weight in (("none", 0.0), ("lcr", 1.0)):
            train_small_run(
                folder / variant / f"seed-{seed}", TrainSpec(epochs=1, batch_size=300, seed=seed, lcr_weight=weight)
            )
    train_small_run(folder / "real", TrainSpec(epochs=1, batch_size=300, method="real"))
    return folder


def test_analyze_writes_one_record_per_run_and_compares_seed_by_seed(
    runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "analyze",
        str(runs_folder / "none"),
        f"with={runs_folder / 'lcr'}",
        *ANALYZE_OPTIONS,
        "--per-layer",
        "-o",
        str(tmp_path),
    ]
    assert main(argv) == 0
    output = capsys.readouterr()
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.json")) == [
        f"{variant}/seed-{seed}.json" for variant in ("none", "with") for seed in (0, 1)
    ]
    record = read_record(tmp_path / "none" / "seed-0.json")
    assert record["kind"] == "analyze"
    assert (record["settings"]["images"], record["settings"]["spec"]["seed"]) == (20, 0)
    assert all(norm["low"] <= norm["high"] for norm in record["figures"]["norms"].values())
    assert set(record["figures"]["flips"]) == {"0.04", "0.08", "0.12", "pairs"}
    line = next(line for line in output.out.splitlines() if line.startswith("log10 of the surrogate"))
    values = [
        [read_record(tmp_path / variant / f"seed-{s}.json")["figures"]["surrogate_log10"] for s in (0, 1)]
        for variant in ("none", "with")
    ]
    assert f"{sum(values[0]) / 2:.4g}" in line
    assert f"{(sum(values[1]) - sum(values[0])) / 2:+.4g}" in line
    assert "sign flips, percent, noise 0.08" in output.out
    record_bytes = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    assert main(argv) == 0  # the second call reads the records
    second_output = capsys.readouterr()
    assert second_output.out == output.out
    assert "has a record" in second_output.err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json")} == record_bytes
    assert main([*argv, "--num-images", "21"]) == 2
    assert "is a record with other settings" in capsys.readouterr().err


def test_selected_images_of_an_image_folder_cover_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analyze and attack digits that are sorted by class, as image folders are."""
    images = DATASETS["digits"].load(Path())
    ordered = [split.take(np.argsort(split.labels, kind="stable")) for split in (images.train, images.test)]
    dataset = replace(
        DATASETS["digits"], find_image_folder=find_image_folder, load=lambda folder: ImageArrays(*ordered)
    )
    label_sets: list[set[int]] = []
    monkeypatch.setattr(
        analyze_module, "analyze_images", lambda model, batches, *_: label_sets.append(set(batches.labels.tolist()))
    )
    analyze_module.analyze_model(nn.Identity(), dataset, RunOptions("cpu"), 40, lambda part: None)
    monkeypatch.setattr(run_attacks, "wrap_model", lambda model, dataset: nullcontext())
    monkeypatch.setattr(run_attacks, "build_attack_figures", lambda verdict: verdict)
    monkeypatch.setattr(
        run_attacks, "run_all_attacks", lambda target, x, labels, *_, **__: label_sets.append(set(labels.tolist()))
    )
    settings = {"images": 40, "eps": ["8/255"], "seed": 0}
    run_attacks.attack_model(nn.Identity(), dataset, settings, {}, RunOptions("cpu"), 40, lambda part: None)
    assert label_sets == [set(range(10))] * 2


def test_attack_writes_records_and_prints_the_worst_case(
    runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "attack",
        str(runs_folder / "none"),
        str(runs_folder / "lcr"),
        str(runs_folder / "real"),
        *ATTACK_OPTIONS,
        "-o",
        str(tmp_path),
    ]
    assert main(argv) == 0
    output = capsys.readouterr()
    record = read_record(tmp_path / "lcr" / "seed-1.json")
    assert record["settings"]["attacks"] == {
        "fgsm": {},
        "pgd": {"steps": 4, "restarts": 1},
        "apgd-ce": {"steps": 4},
        "apgd-dlr": {"steps": 4},
        "square": {"queries": 20},
    }
    figures = record["figures"]["8/255"]
    survived = {
        name: [d == "1" for h in text for d in f"{int(h, 16):04b}"][:12] for name, text in figures["survived"].items()
    }
    assert {name: pytest.approx(100 * sum(b) / 12) for name, b in survived.items()} == figures["accuracy"]
    assert figures["worst"] == pytest.approx(
        100 * sum(all(outcomes) for outcomes in zip(*survived.values(), strict=True)) / 12
    )
    assert "8/255 worst" in output.out
    assert "lcr − none" in output.out
    assert "gradients" in output.out.splitlines()[-1]  # with or without masked gradients
    assert "5/25" in output.err


def test_attack_warns_of_masked_gradients(
    runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["attack", str(runs_folder / "none" / "seed-0"), *ATTACK_OPTIONS, "-o", str(tmp_path)]
    assert main(argv) == 0
    path = tmp_path / "none" / "seed-0.json"
    record = json.loads(path.read_text())
    record["figures"]["8/255"] |= {"masked": True, "best_black_box": 3.0, "best_gradient": 40.0}
    write_without_digest(path, record)
    capsys.readouterr()
    assert main(argv) == 0
    assert "!!! none, seed 0, 8/255: MASKED GRADIENTS: at 8/255 an attack without gradients (accuracy 3.0 %)" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["attack", "RUNS/none", "--eps", "8:255"], "eps must be greater than 0 and at most 1"),
        (["attack", "RUNS/none", "--eps", "0"], "eps must be greater than 0 and at most 1"),
        (["attack", "RUNS/none", "--eps", "8/255", "8/255"], "--eps contains a value twice"),
        (["attack", "RUNS/none", "--attacks", "fgms"], "no attack is called 'fgms'"),
        (["attack", "RUNS/none", "--num-images", "501"], "digits has 500 test images; got --num-images 501"),
        (["attack", "RUNS/none", "--steps", "0"], "--steps must be a whole number from 1"),
        (["attack", "RUNS"], "there is no run in"),
        (["analyze", "RUNS/none", "RUNS/none"], "two runs of the group 'none' have seed 0"),
        (["analyze", "RUNS/none", "--num-images", "1"], "--num-images must be a whole number from 2"),
        (["cost"], "give at least one network"),
        (["cost", "resnet20", "--paper"], "--paper was removed; use python -m paper costs"),
        (["cost", "resnet21"], "no network is called 'resnet21'"),
        (
            ["cost", "RUNS/none/seed-0", "--method", "bnn"],
            "--method, --bits, --image-size and --num-classes are fixed for a run",
        ),
        (["cost", "resnet20", "--image-size", "4"], "--image-size must be a whole number from 8"),
    ],
)
def test_invalid_input_gives_a_one_line_error(
    argv: list[str], message: str, runs_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("RUNS", str(runs_folder)) for word in argv]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert len(output.err.splitlines()) == 1


def test_attack_requires_a_finished_run(runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(runs_folder / "real", tmp_path / "real")
    (tmp_path / "real" / "record.json").unlink()
    assert main(["attack", str(tmp_path / "real"), *ATTACK_OPTIONS]) == 2
    assert "is not finished" in capsys.readouterr().err


def test_cost_prints_figures_and_writes_a_record(
    runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", str(runs_folder / "none" / "seed-0"), "--per-layer", "-o", str(tmp_path / "cost.json")]) == 0
    out = capsys.readouterr().out
    figures = read_record(tmp_path / "cost.json")["figures"]
    for number in (figures["binary_macs"], figures["element_wise"], figures["stored_bits"], figures["file_bytes"]):
        assert f"{number:,}" in out
    assert figures["ops"] == figures["real_macs"] + figures["binary_macs"] / 64
    assert sum("MACs" in line for line in out.splitlines()) == 3 + len(figures["layers"])
    assert main(["cost", "resnet20", "--method", "rbnn", "--bits", "1/32"]) == 0
    assert "no .bnn file: layer" in capsys.readouterr().out
    assert main(["cost", "resnet20", "--method", "sq-twn"]) == 0
    out = capsys.readouterr().out
    assert "of which 267,264 are stored in 2 bits" in out
    assert "in full precision 1.085 MB" in out  # 269,850 parameters and 1,504 statistics, 32 bits each


def test_groups_are_compared_on_their_common_seeds(runs_folder: Path) -> None:
    groups = find_groups([f"a={runs_folder / 'none'}", str(runs_folder / "lcr" / "seed-1")])
    assert {label: sorted(seeds) for label, seeds in groups.items()} == {"a": [0, 1], "lcr": [1]}
    figures = {
        "a": {0: {"x": 1.0}, 1: {"x": 2.0}, 2: {"x": 9.0}},
        "b": {0: {"x": 1.5}, 1: {"x": 2.7}},
        "c": {0: {"x": 1.0}},
    }
    lines = render_group_comparison(figures, {"x": "title", "y": "not measured"}).splitlines()
    assert len(lines) == 3
    assert "+0.6 [-0.6706, +1.871]" in lines[1]  # 0.5 and 0.7: 0.6 ± 12.706 · 0.1
    assert lines[1].rstrip().endswith("–")
    long_name_figures = {"a": figures["a"], "resnet20-double-irnet-lcr": figures["b"]}
    head, row, _ = render_group_comparison(long_name_figures, {"x": "title"}).splitlines()
    assert head.index("resnet20") + len("resnet20-double-irnet-lcr") == row.index("(0.85)") + len("(0.85)")
    assert len(head) == len(row)


def test_eps_is_a_fraction_or_a_number() -> None:
    assert parse_eps("8/255") == 8 / 255
    assert parse_eps("0.5/255") == 0.5 / 255
    assert parse_eps("0.03") == 0.03
    for text in ("", "1/0", "2", "-1/255", "nan", "8/255/1", "x"):
        with pytest.raises(InputError):
            parse_eps(text)
