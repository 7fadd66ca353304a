from __future__ import annotations

import statistics

import numpy as np
import pytest

from lcrbnn.errors import InputError
from lcrbnn.study.paired import paired, quantile, shift_seen


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 1.376), (4, 0.941), (9, 0.883)])
def test_so_are_those_of_the_power(freedom: int, expected: float) -> None:
    assert quantile(0.8, freedom) == pytest.approx(expected, abs=5e-4)


def test_an_interval_by_hand() -> None:
    """Differences 1, 2, 3, 4, 5: mean 3, deviation sqrt(2.5), standard error 0.7071, t = 2.776; 3.761 see below."""
    found = paired([10, 20, 30, 40, 50], [11, 22, 33, 44, 55])
    assert (found.pairs, found.mean) == (5, 3)
    assert found.deviation == pytest.approx(2.5**0.5)
    assert (found.low, found.high) == (pytest.approx(3 - 1.9632, abs=1e-3), pytest.approx(3 + 1.9632, abs=1e-3))
    assert found.visible == pytest.approx(3.7611 * 0.7071, abs=2e-3)
    assert found.decided
    assert str(found) == "+3.00 [+1.04, +4.96]"


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
def test_a_visible_difference_is_seen_four_times_out_of_five(pairs: int) -> None:
    """By trial: normal differences around it, and how often their interval leaves out 0."""
    draws = np.random.default_rng(0).standard_normal((200_000, pairs)) + shift_seen(pairs - 1) / pairs**0.5
    error = draws.std(1, ddof=1) / pairs**0.5
    assert (draws.mean(1) > quantile(0.975, pairs - 1) * error).mean() == pytest.approx(0.8, abs=0.004)


def test_pairing_takes_out_what_seeds_share() -> None:
    """Runs that differ a lot between seeds and hardly within a pair decide what their means alone would not."""
    a = [80.0, 84.0, 88.0]
    b = [80.5, 84.6, 88.4]
    assert paired(a, b).decided
    assert statistics.stdev(a) > 10 * paired(a, b).deviation
    assert not paired(a, [84.6, 88.4, 80.5]).decided


def test_one_pair_or_unequal_lists_have_no_interval() -> None:
    for a, b in (([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([], [])):
        with pytest.raises(InputError, match="an interval needs two or more pairs of runs"):
            paired(a, b)
