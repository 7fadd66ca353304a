"""Records support the statements of paper/docs/claims.md about gains, λ and ratios."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired, detectable_difference
from lcrbnn.recipes.recipe import find_recipe
from lcrbnn.study.plan import RecordsBySeed, read_plan, read_records
from paper.tables.published import PUBLISHED
from paper.tables.table_spec import read_table_spec

ROOT = Path(__file__).parents[2]


def read_runs(variant: str, num_seeds: int) -> RecordsBySeed:
    study, name = variant.split("/")
    records = read_records(
        read_plan(ROOT / "paper" / "studies" / f"{study}.toml"),
        name,
        range(num_seeds),
        ROOT / "paper" / "results" / study,
    )
    assert len(records) == num_seeds
    return records


def compare_variants(
    baseline: str, variant: str, num_seeds: int, measure: Callable[[dict[str, Any]], float]
) -> PairedDifference:
    return compare_paired(
        *([measure(record) for record in read_runs(variant, num_seeds).values()] for variant in (baseline, variant))
    )


def get_ratio_distance(record: dict[str, Any]) -> float:
    """Return the mean |σ_B/σ_F − 1| after the last epoch."""
    return statistics.fmean(abs(ratio - 1) for ratio in record["figures"]["last_epoch"]["sigma_ratios"])


def get_valid_top1(record: dict[str, Any]) -> float:
    return record["figures"]["last_epoch"]["valid_top1"]


def get_test_top1(record: dict[str, Any]) -> float:
    return record["test_results"][0]["top1"]


def test_double_skips_gain_what_the_paper_states_without_lcr() -> None:
    gain = compare_variants("cifar10-plain/none", "cifar10-double/none", 5, get_test_top1)
    assert str(gain) == "+0.85 [+0.41, +1.30]"
    assert gain.is_significant
    assert gain.low < 1.0 < gain.high


def test_double_skips_gain_with_lcr_and_the_difference_is_open() -> None:
    gain = compare_variants("cifar10-plain/default", "cifar10-double/default", 5, get_test_top1)
    assert str(gain) == "+1.05 [+0.37, +1.73]"
    assert gain.low < 1.2 < gain.high
    gains = []
    for variant in ("none", "default"):
        plain, double = (
            map(get_test_top1, read_runs(f"cifar10-{network}/{variant}", 5).values()) for network in ("plain", "double")
        )
        gains.append([b - a for a, b in zip(plain, double, strict=True)])
    difference = compare_paired(*gains)
    assert str(difference) == "+0.20 [-0.71, +1.10]"
    assert not difference.is_significant
    deviation = statistics.stdev(with_lcr - without for with_lcr, without in zip(gains[1], gains[0], strict=True))
    assert next(n for n in range(2, 200) if detectable_difference(n - 1) * deviation / n**0.5 <= 0.2) == 106


def test_the_paper_variant_does_not_learn_at_the_lambdas_of_the_paper() -> None:
    """One seed is enough: without LCR, eight seeds differ by less than 1.5 points."""
    without = [get_test_top1(record) for record in read_runs("cifar10-double/none", 8).values()]
    assert max(without) - min(without) < 1.5
    variants = ("half", "1", "2", "4", "8")
    top1 = [
        get_test_top1(record)
        for variant in variants
        for record in read_runs(f"cifar10-lambda-paper/lambda-{variant}", 1).values()
    ]
    assert top1 == [30.55, 19.53, 42.79, 23.28, 15.17]
    assert f"{top1[3] - without[0]:.2f}" == "-61.71"


def test_larger_lambda_brings_ratios_to_1_and_accuracy_down() -> None:
    closer = compare_variants("cifar10-screen/none", "cifar10-screen/eq9-share-10", 2, get_ratio_distance)
    worse = compare_variants("cifar10-screen/none", "cifar10-screen/eq9-share-10", 2, get_valid_top1)
    assert str(closer) == "-0.12 [-0.18, -0.07]"
    assert str(worse) == "-11.39 [-18.19, -4.60]"
    runs = [read_runs(f"cifar10-screen/{variant}", 2) for variant in ("none", "eq9-1", "eq9-8", "eq9-share-10")]
    means = [statistics.fmean(get_valid_top1(record) for record in records.values()) for records in runs]
    assert [f"{mean:.1f}" for mean in means] == ["76.6", "75.8", "74.7", "65.2"]
    weights = [
        statistics.fmean(record["figures"]["last_epoch"]["lcr_weight"] for record in records.values())
        for records in runs
    ]
    assert weights == sorted(weights)
    assert f"{weights[-1]:.0f}" == "111"


def test_the_paper_variant_brings_ratios_closer_to_1_and_training_collapses() -> None:
    closer = compare_variants("cifar10-screen/paper-1e-3", "cifar10-screen/paper-1", 2, get_ratio_distance)
    assert str(closer) == "-1.16 [-2.08, -0.25]"
    assert [round(get_valid_top1(record)) for record in read_runs("cifar10-screen/paper-1", 2).values()] == [47, 18]
    assert all(get_valid_top1(record) > 76 for record in read_runs("cifar10-screen/paper-1e-3", 2).values())


def test_the_paper_variant_does_not_gain_what_the_paper_states() -> None:
    double = {
        row.variant.name: row.paper_value
        for row in read_table_spec(ROOT / "paper" / "tables.toml").tables["double"].rows
    }
    gain = compare_variants("cifar10-double/none", "cifar10-double/paper", 8, get_test_top1)
    assert str(gain) == "+0.18 [-0.24, +0.60]"
    assert not gain.is_significant
    assert gain.high < round(double["paper"] - double["none"], 2) == 0.7


def test_with_real_activations_lcr_gains_nothing() -> None:
    gain = compare_variants("cifar10-weights/none", "cifar10-weights/default", 3, get_test_top1)
    assert str(gain) == "-0.09 [-0.27, +0.09]"
    assert gain.high < 0.4
    assert compare_variants("cifar10-weights/none", "cifar10-weights/paper", 3, get_test_top1).high < 0


def test_a_published_accuracy_is_above_that_of_the_paper() -> None:
    double = read_table_spec(ROOT / "paper" / "tables.toml").tables["double"]
    paper_top1 = max(row.paper_value for row in double.rows if row.paper_value is not None)
    rbnn = next(row for row in PUBLISHED["rbnn"] if row.network == "resnet20-double")
    assert (paper_top1, rbnn.top1) == (87.2, 87.8)


def test_each_row_of_table_1_names_its_recipe() -> None:
    rows = re.findall(
        r"^\| (t1-\S+) \| (.*?) \| (.*?) \|", (ROOT / "paper" / "docs" / "claims.md").read_text(), re.MULTILINE
    )
    networks = [row for row in rows if row[0] != "t1-flops"]
    assert len(networks) == 26
    for name, statement, code in networks:
        (recipe,) = re.findall(r"`(imagenet-[a-z0-9-]+)` in `lcrbnn/recipes/imagenet\.toml`", code)
        summary, spec = find_recipe(recipe).summary, find_recipe(recipe).spec
        top1 = re.search(r": (\d\d\.\d)", statement)
        assert top1 is not None
        assert f"{top1[1]} %" in summary, name  # the recipe says the same figure
        assert spec.uses_lcr == name.endswith("-ours"), name
