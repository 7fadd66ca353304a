"""What docs/claims.md says of runs is what their records say: gains, strengths and ratios, seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.study.paired import Paired, paired
from lcrbnn.study.plan import Runs, read_plan, runs_of
from lcrbnn.study.promise import read_promise
from lcrbnn.study.published import PUBLISHED

ROOT = Path(__file__).parents[1]


def runs(arm: str, seeds: int) -> Runs:
    study, name = arm.split("/")
    found = runs_of(read_plan(ROOT / "studies" / f"{study}.toml"), name, range(seeds), ROOT / "results" / study)
    assert len(found) == seeds
    return found


def compared(one: str, other: str, seeds: int, measure: Callable[[dict[str, Any]], float]) -> Paired:
    return paired(*([measure(record) for record in runs(arm, seeds).values()] for arm in (one, other)))


def distance(record: dict[str, Any]) -> float:
    """The mean distance of the ratios from 1 after the last epoch."""
    return statistics.fmean(abs(ratio - 1) for ratio in record["figures"]["last"]["ratios"])


def valid(record: dict[str, Any]) -> float:
    return record["figures"]["last"]["valid"]


def test_double_skips_gain_what_the_paper_says_without_retention() -> None:
    gain = compared("cifar10-plain/none", "cifar10-double/none", 5, lambda record: record["readings"][0]["top1"])
    assert str(gain) == "+0.85 [+0.41, +1.30]"
    assert gain.decided
    assert gain.low < 1.0 < gain.high


def test_stronger_retention_brings_ratios_to_one_and_accuracy_down() -> None:
    closer = compared("cifar10-screen/none", "cifar10-screen/eq9-share-10", 2, distance)
    worse = compared("cifar10-screen/none", "cifar10-screen/eq9-share-10", 2, valid)
    assert str(closer) == "-0.12 [-0.18, -0.07]"
    assert str(worse) == "-11.39 [-18.19, -4.60]"
    strengths = [runs(f"cifar10-screen/{arm}", 2) for arm in ("none", "eq9-1", "eq9-8", "eq9-share-10")]
    means = [statistics.fmean(valid(record) for record in found.values()) for found in strengths]
    assert [f"{mean:.1f}" for mean in means] == ["76.6", "75.8", "74.7", "65.2"]
    weights = [
        statistics.fmean(record["figures"]["last"]["weight"] for record in found.values()) for found in strengths
    ]
    assert weights == sorted(weights)
    assert f"{weights[-1]:.0f}" == "111"


def test_the_literal_form_brings_its_ratios_closer_and_ends_training() -> None:
    closer = compared("cifar10-screen/paper-1e-3", "cifar10-screen/paper-1", 2, distance)
    assert str(closer) == "-1.16 [-2.08, -0.25]"
    assert [round(valid(record)) for record in runs("cifar10-screen/paper-1", 2).values()] == [47, 18]
    assert all(valid(record) > 76 for record in runs("cifar10-screen/paper-1e-3", 2).values())


def test_the_literal_form_does_not_gain_what_the_paper_says() -> None:
    double = {row.of.name: row.paper for row in read_promise(ROOT / "results" / "plan.toml").tables["double"].rows}
    gain = compared("cifar10-double/none", "cifar10-double/paper", 8, lambda record: record["readings"][0]["top1"])
    assert str(gain) == "+0.18 [-0.24, +0.60]"
    assert not gain.decided
    assert gain.high < round(double["paper"] - double["none"], 2) == 0.7


def test_a_published_figure_is_above_the_papers() -> None:
    double = read_promise(ROOT / "results" / "plan.toml").tables["double"]
    ours = max(row.paper for row in double.rows if row.paper is not None)
    rbnn = next(row for row in PUBLISHED["rbnn"] if row.network == "resnet20-double")
    assert (ours, rbnn.top1) == (87.2, 87.8)
