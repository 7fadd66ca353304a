"""What docs/claims.md says of runs is what their records say: gains, strengths and ratios, seed by seed."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.study.paired import Paired, paired, shift_seen
from lcrbnn.study.plan import Runs, read_plan, runs_of
from lcrbnn.study.promise import read_promise
from lcrbnn.study.published import PUBLISHED
from lcrbnn.train.recipes import find_recipe

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


def on_test(record: dict[str, Any]) -> float:
    return record["readings"][0]["top1"]


def test_double_skips_gain_what_the_paper_says_without_retention() -> None:
    gain = compared("cifar10-plain/none", "cifar10-double/none", 5, on_test)
    assert str(gain) == "+0.85 [+0.41, +1.30]"
    assert gain.decided
    assert gain.low < 1.0 < gain.high


def test_double_skips_gain_with_retention_too_and_whether_more_is_open() -> None:
    gain = compared("cifar10-plain/default", "cifar10-double/default", 5, on_test)
    assert str(gain) == "+1.05 [+0.37, +1.73]"
    assert gain.low < 1.2 < gain.high
    gains = [
        [double - plain for plain, double in zip(*(map(on_test, runs(f"cifar10-{network}/{arm}", 5).values())
                                                   for network in ("plain", "double")), strict=True)]
        for arm in ("none", "default")
    ]  # fmt: skip
    more = paired(*gains)
    assert str(more) == "+0.20 [-0.71, +1.10]"
    assert not more.decided
    deviation = statistics.stdev(one - other for one, other in zip(gains[1], gains[0], strict=True))
    assert next(n for n in range(2, 200) if shift_seen(n - 1) * deviation / n**0.5 <= 0.2) == 106


def test_the_literal_form_at_the_papers_strengths_does_not_learn() -> None:
    """One seed is enough: without retention no two of eight are a point and a half apart."""
    without = [on_test(record) for record in runs("cifar10-double/none", 8).values()]
    assert max(without) - min(without) < 1.5
    arms = ("half", "1", "2", "4", "8")
    found = [on_test(record) for arm in arms for record in runs(f"cifar10-lambda-paper/lambda-{arm}", 1).values()]
    assert found == [30.55, 19.53, 42.79, 23.28, 15.17]
    assert f"{found[3] - without[0]:.2f}" == "-61.71"


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
    gain = compared("cifar10-double/none", "cifar10-double/paper", 8, on_test)
    assert str(gain) == "+0.18 [-0.24, +0.60]"
    assert not gain.decided
    assert gain.high < round(double["paper"] - double["none"], 2) == 0.7


def test_with_real_activations_retention_gains_nothing() -> None:
    gain = compared("cifar10-weights/none", "cifar10-weights/default", 3, on_test)
    assert str(gain) == "-0.09 [-0.27, +0.09]"
    assert gain.high < 0.4
    assert compared("cifar10-weights/none", "cifar10-weights/paper", 3, on_test).high < 0


def test_a_published_figure_is_above_the_papers() -> None:
    double = read_promise(ROOT / "results" / "plan.toml").tables["double"]
    ours = max(row.paper for row in double.rows if row.paper is not None)
    rbnn = next(row for row in PUBLISHED["rbnn"] if row.network == "resnet20-double")
    assert (ours, rbnn.top1) == (87.2, 87.8)


def test_each_row_of_table_1_names_the_recipe_that_would_make_it() -> None:
    rows = re.findall(r"^\| (t1-\S+) \| (.*?) \| (.*?) \|", (ROOT / "docs" / "claims.md").read_text(), re.MULTILINE)
    networks = [row for row in rows if row[0] != "t1-flops"]
    assert len(networks) == 26
    for name, said, where in networks:
        (recipe,) = re.findall(r"`lcrbnn/recipes/(imagenet-[a-z0-9-]+)\.toml`", where)
        found = find_recipe(recipe)
        top1 = re.search(r": (\d\d\.\d)", said)
        assert top1 is not None
        assert f"{top1[1]} %" in found.summary, name  # the recipe says the same figure
        assert found.spec.retains == name.endswith("-ours"), name
