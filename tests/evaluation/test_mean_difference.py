"""Welch's interval, the pooled estimate and Holm's correction, compared with simulations and hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lcrbnn.errors import InputError
from lcrbnn.evaluation.mean_difference import (
    MeanDifference,
    adjust_holm,
    compare_welch,
    correlate_pairs,
    pool_differences,
)
from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.evaluation.student_t import student_t_quantile, student_t_tail


@pytest.mark.parametrize(("t", "degrees_of_freedom"), [(0.0, 3.0), (1.3, 2.5), (2.1, 7.7), (4.0, 61.3), (0.02, 900.0)])
def test_the_tail_equals_the_integral_of_the_density(t: float, degrees_of_freedom: float) -> None:
    """Integrate over the angle, t = sqrt(df) tan(angle), where the density is cos(angle)^(df - 1) times a constant."""
    angles = np.linspace(math.atan(t / math.sqrt(degrees_of_freedom)), math.pi / 2, 200_001)
    density = np.cos(angles) ** (degrees_of_freedom - 1)
    log_constant = math.lgamma((degrees_of_freedom + 1) / 2) - math.lgamma(degrees_of_freedom / 2)
    integral = float(np.trapezoid(density, angles)) * math.exp(log_constant) / math.sqrt(math.pi)
    assert student_t_tail(t, degrees_of_freedom) == pytest.approx(integral, abs=1e-8)


def test_a_quantile_between_whole_degrees_of_freedom_is_between_their_quantiles() -> None:
    assert student_t_quantile(0.975, 5) < student_t_quantile(0.975, 4.5) < student_t_quantile(0.975, 4)


def test_welch_equals_a_hand_computed_example() -> None:
    """Variances 1 and 16 of 3 and 4 runs: standard error sqrt(1/3 + 4), df = 4.3333^2 / (1/18 + 16/3)."""
    difference = compare_welch([9, 10, 11], [10 - math.sqrt(24), 10, 10, 10 + math.sqrt(24)])
    assert difference.mean == pytest.approx(0)
    assert difference.standard_error == pytest.approx(math.sqrt(1 / 3 + 4))
    assert difference.degrees_of_freedom == pytest.approx((1 / 3 + 4) ** 2 / (1 / 18 + 16 / 3))


def test_welch_intervals_contain_the_truth_in_95_percent_of_trials() -> None:
    random = np.random.default_rng(0)
    num_trials, num_hits = 1000, 0
    for _ in range(num_trials):
        low, high = compare_welch(list(random.normal(0, 1, 5)), list(random.normal(1, 3, 8))).interval
        num_hits += low <= 1 <= high
    assert num_hits / num_trials == pytest.approx(0.95, abs=0.02)


def test_pooled_intervals_contain_the_mean_of_the_strata_in_95_percent_of_trials() -> None:
    """The strata have different means, so an estimate that ignores the strata would have too long intervals."""
    random = np.random.default_rng(0)
    means, sizes = (0.0, 5.0, -3.0), (8, 5, 4)
    truth = np.dot(means, sizes) / sum(sizes)
    num_trials, num_hits, lengths = 1000, 0, []
    for _ in range(num_trials):
        strata = [list(random.normal(mean, 1, size)) for mean, size in zip(means, sizes, strict=True)]
        low, high = pool_differences(strata).interval
        num_hits += low <= truth <= high
        lengths.append(high - low)
    assert num_hits / num_trials == pytest.approx(0.95, abs=0.02)
    assert np.mean(lengths) < 2.5 * 2 / math.sqrt(sum(sizes))


def test_one_stratum_is_the_paired_comparison() -> None:
    a, b = [80.0, 81.0, 82.5], [80.5, 81.1, 82.6]
    pooled, paired = pool_differences([[y - x for x, y in zip(a, b, strict=True)]]), compare_paired(a, b)
    assert pooled.mean == pytest.approx(paired.mean)
    assert pooled.interval == pytest.approx((paired.low, paired.high))
    assert pooled.detectable == pytest.approx(paired.detectable)
    assert str(pooled) == str(paired)


@pytest.mark.parametrize("strata", [[], [[]], [[1.0], [2.0]]])
def test_too_few_differences_cannot_be_pooled(strata: list[list[float]]) -> None:
    with pytest.raises(InputError, match="pooled estimate needs"):
        pool_differences(strata)


def test_the_p_value_of_the_end_of_an_interval_is_5_percent() -> None:
    difference = MeanDifference(student_t_quantile(0.975, 6.5) * 0.3, 0.3, 6.5)
    assert difference.p_value == pytest.approx(0.05)
    assert difference.interval[0] == pytest.approx(0, abs=1e-12)


def test_holm_multiplies_the_smallest_p_value_most_and_keeps_the_order() -> None:
    assert adjust_holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert adjust_holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def test_holm_rejects_a_true_hypothesis_in_at_most_5_percent_of_trials() -> None:
    p_values = np.random.default_rng(0).uniform(size=(4000, 6))
    assert np.mean([min(adjust_holm(list(row))) < 0.05 for row in p_values]) == pytest.approx(0.05, abs=0.01)


def test_the_correlation_of_pairs_has_the_sign_of_their_common_variation() -> None:
    assert correlate_pairs([1, 2, 3], [2, 4, 7]) > 0.9
    assert correlate_pairs([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(correlate_pairs([1, 2], [3, 4]))
    assert math.isnan(correlate_pairs([1, 1, 1], [3, 4, 5]))
