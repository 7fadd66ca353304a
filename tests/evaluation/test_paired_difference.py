from __future__ import annotations

import statistics

import numpy as np
import pytest

from lcrbnn.errors import InputError
from lcrbnn.evaluation.paired_difference import compare_paired, detectable_difference
from lcrbnn.evaluation.student_t import student_t_quantile


@pytest.mark.parametrize(
    ("degrees_of_freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_97_5_percent_quantiles_match_published_tables(degrees_of_freedom: int, expected: float) -> None:
    assert student_t_quantile(0.975, degrees_of_freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("degrees_of_freedom", "expected"), [(1, 1.376), (4, 0.941), (9, 0.883)])
def test_80_percent_quantiles_match_published_tables(degrees_of_freedom: int, expected: float) -> None:
    assert student_t_quantile(0.8, degrees_of_freedom) == pytest.approx(expected, abs=5e-4)


def test_an_interval_matches_hand_computed_values() -> None:
    """Differences 1 to 5: mean 3, std sqrt(2.5), standard error 0.7071, t = 2.776; the next test verifies 3.761."""
    difference = compare_paired([10, 20, 30, 40, 50], [11, 22, 33, 44, 55])
    assert (difference.num_pairs, difference.mean) == (5, 3)
    assert difference.std == pytest.approx(2.5**0.5)
    assert (difference.low, difference.high) == (
        pytest.approx(3 - 1.9632, abs=1e-3),
        pytest.approx(3 + 1.9632, abs=1e-3),
    )
    assert difference.detectable == pytest.approx(3.7611 * 0.7071, abs=2e-3)
    assert difference.is_significant
    assert str(difference) == "+3.00 [+1.04, +4.96]"


@pytest.mark.parametrize("num_pairs", [2, 3, 5, 8])
def test_a_detectable_difference_is_detected_in_80_percent_of_trials(num_pairs: int) -> None:
    """Simulate normal differences with this mean, and count the intervals that exclude 0."""
    differences = (
        np.random.default_rng(0).standard_normal((200_000, num_pairs))
        + detectable_difference(num_pairs - 1) / num_pairs**0.5
    )
    standard_error = differences.std(1, ddof=1) / num_pairs**0.5
    assert (differences.mean(1) > student_t_quantile(0.975, num_pairs - 1) * standard_error).mean() == pytest.approx(
        0.8, abs=0.004
    )


def test_pairing_removes_the_variation_between_seeds() -> None:
    """A small difference is significant if runs differ much between seeds but little within pairs."""
    a = [80.0, 84.0, 88.0]
    b = [80.5, 84.6, 88.4]
    assert compare_paired(a, b).is_significant
    assert statistics.stdev(a) > 10 * compare_paired(a, b).std
    assert not compare_paired(a, [84.6, 88.4, 80.5]).is_significant


def test_one_pair_or_unequal_lists_are_rejected() -> None:
    for a, b in (([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([], [])):
        with pytest.raises(InputError, match="an interval needs two or more pairs of runs"):
            compare_paired(a, b)
