"""`lcrbnn analyze`, `attack` and `cost`: records, tables, and one sentence for a mistake."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from lcrbnn.analyze import robust
from lcrbnn.attack import run as attacking
from lcrbnn.attack.run import parse_eps
from lcrbnn.cli import main
from lcrbnn.data import DATASETS, Images
from lcrbnn.data.tree import find_tree
from lcrbnn.errors import InputError
from lcrbnn.runs.record import read_record
from lcrbnn.study.groups import compare, find_groups
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from tests.runs.helpers import write_without_digest
from tests.train.helpers import small_run

ANALYZE = ("--images", "20", "--device", "cpu")
ATTACK = ("--images", "12", "--steps", "4", "--restarts", "1", "--queries", "20", "--eps", "8/255", "--device", "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for arm, weight in (("none", 0.0), ("lcr", 1.0)):
            small_run(folder / arm / f"seed-{seed}", Spec(epochs=1, batch=300, seed=seed, weight=weight))
    small_run(folder / "real", Spec(epochs=1, batch=300, method="real"))
    return folder


def test_analyze_writes_a_record_a_run_and_compares_seed_by_seed(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["analyze", str(runs / "none"), f"with={runs / 'lcr'}", *ANALYZE, "--layers", "-o", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.json")) == [
        f"{arm}/seed-{seed}.json" for arm in ("none", "with") for seed in (0, 1)
    ]
    record = read_record(tmp_path / "none" / "seed-0.json")
    assert record["kind"] == "analyze"
    assert (record["settings"]["images"], record["settings"]["run"]["seed"]) == (20, 0)
    assert all(one["low"] <= one["high"] for one in record["figures"]["norms"].values())
    assert set(record["figures"]["flips"]) == {"0.04", "0.08", "0.12", "pairs"}
    line = next(line for line in shown.out.splitlines() if line.startswith("log10 of the surrogate"))
    values = [
        [read_record(tmp_path / arm / f"seed-{s}.json")["figures"]["surrogate_log10"] for s in (0, 1)]
        for arm in ("none", "with")
    ]
    assert f"{sum(values[0]) / 2:.4g}" in line
    assert f"{(sum(values[1]) - sum(values[0])) / 2:+.4g}" in line
    assert "sign flips, percent, noise 0.08" in shown.out
    written = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    assert main(words) == 0  # the second time it reads
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "has a record" in again.err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json")} == written
    assert main([*words, "--images", "21"]) == 2
    assert "is a record of something else" in capsys.readouterr().err


def test_some_images_of_a_tree_stand_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands, with digits in the order of their labels, as a tree would have them."""
    images = DATASETS["digits"].load(Path())
    ordered = [split.take(np.argsort(split.labels, kind="stable")) for split in (images.train, images.test)]
    row = replace(DATASETS["digits"], tree=find_tree, load=lambda folder: Images(*ordered))
    seen: list[set[int]] = []
    monkeypatch.setattr(robust, "analyze", lambda model, batches, *more: seen.append(set(batches.labels.tolist())))
    robust.analyze_some(nn.Identity(), row, Options("cpu"), 40, lambda what: None)
    monkeypatch.setattr(attacking, "target_of", lambda model, row: nullcontext())
    monkeypatch.setattr(attacking, "figures", lambda verdict: verdict)
    monkeypatch.setattr(
        attacking, "attack_all", lambda target, x, labels, *more, **how: seen.append(set(labels.tolist()))
    )
    settings = {"images": 40, "eps": ["8/255"], "seed": 0}
    attacking.attack_some(nn.Identity(), row, settings, {}, Options("cpu"), 40, lambda what: None)
    assert seen == [set(range(10))] * 2


def test_attack_writes_records_and_the_worst_case(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["attack", str(runs / "none"), str(runs / "lcr"), str(runs / "real"), *ATTACK, "-o", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr()
    record = read_record(tmp_path / "lcr" / "seed-1.json")
    assert record["settings"]["attacks"] == {
        "fgsm": {},
        "pgd": {"steps": 4, "restarts": 1},
        "apgd-ce": {"steps": 4},
        "apgd-dlr": {"steps": 4},
        "square": {"queries": 20},
    }
    found = record["figures"]["8/255"]
    bits = {
        name: [d == "1" for h in text for d in f"{int(h, 16):04b}"][:12] for name, text in found["survived"].items()
    }
    assert {name: pytest.approx(100 * sum(b) / 12) for name, b in bits.items()} == found["accuracy"]
    assert found["worst"] == pytest.approx(100 * sum(all(one) for one in zip(*bits.values(), strict=True)) / 12)
    assert "8/255 worst" in shown.out
    assert "lcr − none" in shown.out
    assert "gradients" in shown.out.splitlines()[-1]  # one sentence or the other
    assert "5/25" in shown.err


def test_a_masked_gradient_is_said_loudly(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["attack", str(runs / "none" / "seed-0"), *ATTACK, "-o", str(tmp_path)]
    assert main(words) == 0
    path = tmp_path / "none" / "seed-0.json"
    record = json.loads(path.read_text())
    record["figures"]["8/255"] |= {"masked": True, "best_black_box": 3.0, "best_gradient": 40.0}
    write_without_digest(path, record)
    capsys.readouterr()
    assert main(words) == 0
    assert "!!! none, seed 0, 8/255: MASKED GRADIENTS: at 8/255 an attack without gradients (3.0 % left right)" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["attack", "RUNS/none", "--eps", "8:255"], "eps is a share of the range of a pixel"),
        (["attack", "RUNS/none", "--eps", "0"], "eps is a share of the range of a pixel"),
        (["attack", "RUNS/none", "--eps", "8/255", "8/255"], "--eps names one twice"),
        (["attack", "RUNS/none", "--attacks", "fgms"], "no attack is called 'fgms'; there are fgsm, pgd"),
        (["attack", "RUNS/none", "--images", "501"], "there are 500 test images; got --images 501"),
        (["attack", "RUNS/none", "--steps", "0"], "--steps must be a whole number from 1"),
        (["attack", "RUNS"], "there is no run in"),
        (["analyze", "RUNS/none", "RUNS/none"], "two runs of the group 'none' have seed 0"),
        (["analyze", "RUNS/none", "--images", "1"], "--images must be a whole number from 2"),
        (["cost"], "say a network or --paper"),
        (["cost", "resnet20", "--paper"], "say a network or --paper"),
        (["cost", "resnet21"], "no network is called 'resnet21'"),
        (["cost", "RUNS/none/seed-0", "--method", "bnn"], "a run has its method, bits, image and classes"),
        (["cost", "resnet20", "--image", "4"], "--image must be a whole number from 8"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("RUNS", str(runs)) for word in words]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert len(shown.err.splitlines()) == 1


def test_attacks_are_on_finished_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(runs / "real", tmp_path / "real")
    (tmp_path / "real" / "record.json").unlink()
    assert main(["attack", str(tmp_path / "real"), *ATTACK]) == 2
    assert "is not finished" in capsys.readouterr().err


def test_cost_prints_and_records(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", str(runs / "none" / "seed-0"), "--layers", "-o", str(tmp_path / "cost.json")]) == 0
    out = capsys.readouterr().out
    figures = read_record(tmp_path / "cost.json")["figures"]
    for number in (figures["binary_macs"], figures["element_wise"], figures["stored_bits"], figures["file_bytes"]):
        assert f"{number:,}" in out
    assert figures["ops"] == figures["real_macs"] + figures["binary_macs"] / 64
    assert sum("MACs" in line for line in out.splitlines()) == 3 + len(figures["layers"])
    assert main(["cost", "resnet20", "--method", "dorefa", "--bits", "1/2"]) == 0
    assert "no .bnn file: layer" in capsys.readouterr().out
    assert main(["cost", "resnet20", "--method", "sq-twn"]) == 0
    out = capsys.readouterr().out
    assert "of which 267,264 keep 2 bits each" in out
    assert "in full precision 1.085 MB" in out  # 269,850 parameters and 1,504 statistics, 32 bits each


def test_groups_are_named_and_compared_on_the_seeds_they_share(runs: Path) -> None:
    found = find_groups([f"a={runs / 'none'}", str(runs / "lcr" / "seed-1")])
    assert {label: sorted(seeds) for label, seeds in found.items()} == {"a": [0, 1], "lcr": [1]}
    figures = {
        "a": {0: {"x": 1.0}, 1: {"x": 2.0}, 2: {"x": 9.0}},
        "b": {0: {"x": 1.5}, 1: {"x": 2.7}},
        "c": {0: {"x": 1.0}},
    }
    line = compare(figures, {"x": "what", "y": "nobody has it"}).splitlines()
    assert len(line) == 3
    assert "+0.6 [-0.6706, +1.871]" in line[1]  # 0.5 and 0.7: 0.6 ± 12.706 · 0.1
    assert line[1].rstrip().endswith("–")
    long = {"a": figures["a"], "resnet20-double-irnet-lcr": figures["b"]}
    head, row, _ = compare(long, {"x": "what"}).splitlines()
    assert head.index("resnet20") + len("resnet20-double-irnet-lcr") == row.index("(0.85)") + len("(0.85)")
    assert len(head) == len(row)


def test_eps_is_a_fraction_or_a_number() -> None:
    assert parse_eps("8/255") == 8 / 255
    assert parse_eps("0.5/255") == 0.5 / 255
    assert parse_eps("0.03") == 0.03
    for wrong in ("", "1/0", "2", "-1/255", "nan", "8/255/1", "x"):
        with pytest.raises(InputError):
            parse_eps(wrong)
