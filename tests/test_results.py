"""The rendered tables: by hand on made-up records, docs/results.md from the committed ones; weights that are kept."""

from __future__ import annotations

import json
import os
import re
import statistics
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.methods import method
from lcrbnn.study.layers import map_table, rank_correlation, weight_table
from lcrbnn.study.promise import Arm, Promise, read_promise
from lcrbnn.study.results import progress, render, render_table
from lcrbnn.study.sound import check_run
from lcrbnn.study.weights import file_digest, read_weights, recompute
from lcrbnn.train.options import Options
from lcrbnn.train.spec import Spec, option_values

ROOT = Path(__file__).parents[1]
MOST_BYTES = 4_000_000  # of all committed weights together
# Points by which a figure that was read on this kind of device may differ on another processor: bfloat16 sums are
# rounded elsewhere, signs of numbers near 0 flip, images at a border change sides.
ROUNDING = {"cpu": 0.1, "cuda": 0.5}
RETENTION = {"weight", "share", "form", "form_options", "ramp", "teacher", "distill", "temperature"}  # settings of it
BESIDE = {"regularizer", "strength"}  # of what stands beside it
STUDY = """# Two arms
recipe = "digits"
seeds = [0]
control = "none"
[settings]
[arms.none]
[arms.kept]
weight = 1
"""
PLAN = """studies = "."
[tables.a]
title = "A"
source = "Table 0"
layers = true
rows = [
    { title = "without", of = "one/none", seeds = 3, paper = 80.0 },
    { title = "with", of = "one/kept", seeds = 3, paper = 80.6 },
]
[tables.b]
title = "B"
source = "Table 0"
rows = [
    { title = "more", of = "one/kept", than = "two/kept", seeds = 2, paper = 0.2 },
    { title = "single", of = "two/kept", seeds = 1, paper = 70.0 },
]
"""


def put(promise: Promise, arm: str, seed: int, top1: float | None, share: float | None = None, **parts: Any) -> None:
    found = Arm(*arm.split("/"))
    spec = promise.plan(found.study).arms[found.name].but(seed=seed)
    last = {"train": 70.0, "valid": None, "share": share, "ratios": None}
    record = {"schema": 1, "kind": "train", "settings": spec.stored(), "figures": {"last": last}, **parts}
    if top1 is not None:
        record["readings"] = [{"split": "test", "top1": one, "images": 500} for one in (top1, 1.0)]
    path = promise.records / found.study / found.name / f"seed-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


@pytest.fixture
def promise(tmp_path: Path) -> Promise:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(STUDY)
    (tmp_path / "plan.toml").write_text(PLAN)
    return read_promise(tmp_path / "plan.toml")


def cells(promise: Promise, table: str) -> list[list[str]]:
    lines = render_table(promise, promise.tables[table]).splitlines()[2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_a_table_may_show_the_first_five_answers_too(tmp_path: Path, promise: Promise) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("layers = true", "top5 = true"))
    promise = read_promise(tmp_path / "plan.toml")
    for seed, top5 in enumerate((90.0, 92.0)):
        pairs = ((80.0, top5), (1.0, 2.0))
        readings = [{"split": "test", "top1": one, "top5": five, "images": 500} for one, five in pairs]
        put(promise, "one/none", seed, None, readings=readings)
    assert render_table(promise, promise.tables["a"]).splitlines()[0].endswith("| share | top-5 (sd)   |")
    assert [row[-1] for row in cells(promise, "a")] == ["91.00 (1.41)", ""]
    assert "top-5" not in render_table(promise, promise.tables["b"])


def test_figures_intervals_and_gains_by_hand(promise: Promise) -> None:
    for seed, (a, b) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        put(promise, "one/none", seed, a)
        put(promise, "one/kept", seed, b, share=0.02)
    # Student's t with 2 degrees of freedom: 4.3027 at 97.5 %; deviations 1 and 0.2646 over the root of 3
    assert cells(promise, "a") == [
        ["without", "3", "80.0", "81.00 (1.00)", "[78.52, 83.48]", "+1.00", "", "", "", "", ""],
        [
            "with",
            "3",
            "80.6",
            "81.40 (1.08)",
            "[78.71, 84.09]",
            "+0.80",
            "+0.40",
            "[−0.26, +1.06]",
            "0.86",
            "+0.6",
            ".0200",
        ],
    ]
    assert progress(promise, promise.tables["a"]) == (2, 2, 6, 6)


def test_one_run_has_no_interval_and_missing_ones_are_said(promise: Promise) -> None:
    put(promise, "one/none", 1, 79.0)
    put(promise, "one/kept", 1, 80.0, share=0.004)
    put(promise, "one/kept", 2, None)  # finished, not read yet: no figure
    without, kept = cells(promise, "a")
    assert without == ["without", "1 of 3", "80.0", "79.00 (–)", "–", "−1.00", "", "", "", "", ""]
    assert kept == ["with", "1 of 3", "80.6", "80.00 (–)", "–", "−0.60", "+1.00", "–", "–", "+0.6", ".0040"]
    assert cells(promise, "b")[1][:3] == ["single", "not run", "70.0"]
    assert progress(promise, promise.tables["a"]) == (0, 2, 2, 6)


def test_an_interval_of_a_percentage_ends_at_0_and_100(promise: Promise) -> None:
    for seed, (a, b) in enumerate([(99.0, 0.5), (99.8, 1.0), (99.9, 3.0)]):
        put(promise, "one/none", seed, a)
        put(promise, "one/kept", seed, b)
    # deviations 0.493 and 1.323 over the root of 3, times 4.3027: the means lie 1.23 and 3.29 from each end
    assert [row[4] for row in cells(promise, "a")] == ["[98.34, 100.00]", "[0.00, 4.79]"]


def test_a_row_without_a_run_of_its_control_has_no_gain(promise: Promise) -> None:
    put(promise, "one/kept", 0, 80.0, share=0.02)
    assert cells(promise, "a")[1][3:] == ["80.00 (–)", "–", "−0.60", "–", "–", "–", "+0.6", ".0200"]


def test_gains_of_two_arms_are_compared_seed_by_seed(promise: Promise) -> None:
    values = {"one": [(80.0, 81.0), (80.0, 80.6)], "two": [(70.0, 70.5), (71.0, 71.3)]}
    for study, pairs in values.items():
        for seed, (a, b) in enumerate(pairs):
            put(promise, f"{study}/none", seed, a)
            put(promise, f"{study}/kept", seed, b)
    more, single = cells(promise, "b")
    assert more[:6] == ["more", "2", "+0.2", "+0.40 (0.14)", "[−0.87, +1.67]", "+0.20"]
    assert more[6:] == [""] * 5
    assert single[3:10] == ["70.50 (–)", "–", "+0.50", "+0.50", "–", "–", "–"]


def test_a_record_of_other_settings_is_no_figure_of_the_plan(promise: Promise) -> None:
    put(promise, "one/none", 0, 80.0)
    path = promise.records / "one" / "none" / "seed-0.json"
    path.write_text(path.read_text().replace('"epochs": 15', '"epochs": 3'))
    with pytest.raises(InputError, match="was made with epochs 3 and the plan says 15"):
        render(promise)


def layers(std: float, real: list[float]) -> dict[str, Any]:
    maps = {
        f"c{i}": {"size": 100, "chance": 0.08, "real": {"correlation": r, "cosine": r / 2, "signed": r}}
        for i, r in enumerate(real)
    }
    return {"weights": {"c0": {"size": 9, "std": std, "kurtosis": -1.0}}, "maps": maps}


def test_layers_are_compared_seed_by_seed(promise: Promise) -> None:
    for seed in (0, 1):
        put(promise, "one/none", seed, 80.0, layers=layers(1.0 + seed, [0.5, 0.4, 0.3]))
        put(promise, "one/kept", seed, 80.0, layers=layers(0.75 + seed, [0.1, 0.2, 0.4 + seed / 2]))
    widths = weight_table(promise, promise.tables["a"]).splitlines()[2:]
    assert re.sub(" +", " ", widths[0]) == "| `c0` | 9 | 1.500 | 1.250 | −0.250 [−0.250, −0.250] |"
    assert re.sub(" +", " ", widths[-1]) == "| kurtosis | | −1.000 | −1.000 | +0.000 [+0.000, +0.000] |"
    maps = [re.sub(" +", " ", line) for line in map_table(promise, promise.tables["a"]).splitlines()[2:]]
    assert maps[2] == "| `c2` | 100 | 0.080 | 0.300 (0.150) | | 0.650 (0.325) | |"
    assert maps[-1] == "| rank correlation | | | −1.00 | | +1.00 | |"


def test_rank_correlation_with_ties() -> None:
    assert rank_correlation([3.0, 1.0, 2.0]) == pytest.approx(-0.5)
    assert rank_correlation([1.0, 1.0, 2.0, 0.0]) == pytest.approx(-1.5 / (4.5 * 5) ** 0.5)
    assert rank_correlation([1.0, 1.0]) == 0.0


COMMITTED = read_promise(ROOT / "results" / "plan.toml")
KEPT = sorted((ROOT / "results" / "weights").glob("*"))


def test_the_document_is_what_the_records_say() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == render(COMMITTED)


def test_every_promised_arm_has_a_plan_and_every_table_a_control() -> None:
    for table in COMMITTED.tables.values():
        for arm in COMMITTED.arms(table):
            plan = COMMITTED.plan(arm.study)
            known = (*plan.arms, *plan.waiting, "default", "paper")  # the last two come once they are decided
            assert arm.name in known, arm
            best = COMMITTED.control(arm) == arm  # compared with nothing
            assert best or table.pairs or COMMITTED.control(arm).name == "none"  # of a pair it is the first


def test_networks_share_the_settings_of_an_arm_that_is_decided() -> None:
    plans = [COMMITTED.plan(f"cifar10-{name}") for name in ("double", "plain", "weights")]
    for arm in ("default", "paper"):
        found = [plan.arms[arm] for plan in plans if arm in plan.arms]
        assert len(found) in (0, 3)
        assert len({(spec.weight, spec.share, spec.ramp, spec.form, spec.teacher) for spec in found}) <= 1


def test_an_arm_and_its_control_differ_in_retention_alone() -> None:
    for arm in (arm for table in COMMITTED.tables.values() if not table.pairs for arm in COMMITTED.arms(table)):
        free = RETENTION | (BESIDE if arm.study == "cifar10-regularizers" else set())
        free |= {"weight_decay"} if arm.name == "decay-3e-4" else set()  # what defensive quantisation does by the way
        spec, control = COMMITTED.plan(arm.study).arms.get(arm.name), COMMITTED.control(arm)
        if spec is not None:
            plain = COMMITTED.plan(control.study).arms[control.name]
            assert {f.name for f in fields(Spec) if getattr(spec, f.name) != getattr(plain, f.name)} <= free, arm


def record_of(path: Path) -> dict[str, Any]:
    """The record that a committed file of weights belongs to."""
    name = path.name.removesuffix(".safetensors")
    arm, seed = next(
        (arm, seed)
        for arm, seeds in COMMITTED.kept().items()
        for seed in seeds
        if name == f"{arm.study}-{arm.name}-seed-{seed}"
    )
    return json.loads((COMMITTED.records / arm.study / arm.name / f"seed-{seed}.json").read_text())


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_committed_weights_are_those_of_their_record(path: Path) -> None:
    record = record_of(path)
    assert record["weights"] == {"file": path.name, "sha256": file_digest(path)}
    found = read_weights(path)
    assert found.checkpoint == record["figures"]["checkpoint_sha256"] == record["readings"][0]["checkpoint_sha256"]
    assert found.spec == Spec.of(record["settings"])


def test_committed_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in KEPT) < MOST_BYTES


@pytest.mark.slow  # reads 10,000 images a network, half a minute on one core
@pytest.mark.skipif("LCRBNN_DATA" not in os.environ, reason="CIFAR-10 is not at hand")  # its images are not committed
@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
def test_committed_weights_give_their_figure_again(path: Path) -> None:
    reading = record_of(path)["readings"][0]
    again = recompute(path, Options(device="cpu"))
    assert again.images == reading["images"]
    assert again.top1 == pytest.approx(reading["top1"], abs=ROUNDING[reading["device"]])


def test_ratios_can_be_measured_in_every_promised_run() -> None:
    """Without retention too: where activations are real, the reference that a form has unless told is not there."""
    for arm in {arm for table in COMMITTED.tables.values() for arm in COMMITTED.arms(table)}:
        spec = COMMITTED.plan(arm.study).arms.get(arm.name)
        if spec is not None and spec.method != "real":
            real = method(spec.method, spec.bits or None).chosen_bits == 32
            assert (option_values(spec.form_options, "").get("reference") == "weights") == real, arm


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "attack"}, "is a record of 'attack', not of a run"),
        ({"figures": {}}, "has no figures of the last epoch"),
        ({"readings": [5]}, "has a reading that is not of test images: 5"),
        ({"readings": [{"split": "valid", "top1": 80.0, "images": 500}]}, "has a reading that is not of test images"),
        ({"readings": [{"split": "test", "images": 500}]}, "a reading's top1 is a percentage; got None"),
        ({"readings": [{"split": "test", "top1": float("nan"), "images": 500}]}, "top1 is a percentage; got nan"),
        ({"readings": [{"split": "test", "top1": 985.0, "images": 500}]}, "top1 is a percentage; got 985.0"),
        ({"readings": [{"split": "test", "top1": "80", "images": 500}]}, "top1 is a percentage; got '80'"),
        ({"readings": [{"split": "test", "top1": 80.0, "images": 10}]}, "a reading is of 10 images; digits has 500"),
        ({"figures": {"last": {"train": 7.0, "share": "much"}}}, "the last share is no number; got 'much'"),
        ({"figures": {"last": {"train": 7.0, "valid": float("nan")}}}, "last valid is a percentage; got nan"),
        ({"figures": {"last": {"train": 7.0, "ratios": ["a"]}}}, "the last ratios are no list of numbers"),
        ({"figures": {"last": {"train": 7.0}, "noise": {"0.1": "a"}}}, "the accuracies under noise are no numbers"),
    ],
)
def test_a_record_that_a_table_cannot_use_is_one_sentence(
    promise: Promise, change: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(promise, "one/none", 0, 80.0)
    put(promise, "one/none", 1, None, **{"readings": [{"split": "test", "top1": 81.0, "images": 500}], **change})
    place = ["--plan", str(promise.path), "--records", str(promise.records)]
    assert main(["reproduce", "a", "--show", *place]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_reading_of_no_image_is_refused_for_data_of_any_size() -> None:
    reading = {"split": "test", "top1": 80.0, "images": 0}
    record = {"kind": "train", "settings": {"data": "tree"}, "figures": {"last": {"train": 7.0}}, "readings": [reading]}
    with pytest.raises(InputError, match=r"a reading is of 0 images$"):
        check_run(record, Path("a.json"))


def test_recipes_say_what_their_runs_came_to() -> None:
    told = []
    for path in sorted((ROOT / "studies").glob("*.toml")):
        plan = tomllib.loads(path.read_text())
        records = [json.loads(one.read_text()) for one in (ROOT / "results" / path.stem / "none").glob("seed-*.json")]
        tests = [record["readings"][0]["top1"] for record in records if record.get("readings")]
        elsewhere = "data" in plan.get("settings", {})  # other images than the recipe's
        if tests and len(tests) == len(plan["seeds"]) and not elsewhere:
            recipe = (ROOT / "lcrbnn" / "recipes" / f"{plan['recipe']}.toml").read_text()
            told.append(plan["recipe"])
            assert f"Here: {statistics.fmean(tests):.2f} %" in recipe, plan["recipe"]
    assert len(told) >= 5
