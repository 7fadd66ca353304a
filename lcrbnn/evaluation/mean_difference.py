"""Statistics of several comparisons, such as Welch's interval, a pooled estimate and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from lcrbnn.errors import InputError
from lcrbnn.evaluation.paired_difference import CONFIDENCE_LEVEL, detectable_difference
from lcrbnn.evaluation.student_t import student_t_quantile, student_t_tail


class MeanDifference(NamedTuple):
    """An estimate of a difference with its standard error and its degrees of freedom."""

    mean: float
    standard_error: float
    degrees_of_freedom: float

    @property
    def interval(self) -> tuple[float, float]:
        """Return the ends of the 95 % confidence interval."""
        half_width = student_t_quantile(0.5 + CONFIDENCE_LEVEL / 2, self.degrees_of_freedom) * self.standard_error
        return self.mean - half_width, self.mean + half_width

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value of the hypothesis that the true difference is 0."""
        if self.standard_error == 0:
            return float(self.mean == 0)
        return 2 * student_t_tail(abs(self.mean) / self.standard_error, self.degrees_of_freedom)

    @property
    def detectable(self) -> float:
        """Return the true difference whose interval excludes 0 with a probability of 80 %."""
        return detectable_difference(math.floor(self.degrees_of_freedom)) * self.standard_error

    def __str__(self) -> str:
        """Return the signed mean with its interval, such as "+0.31 [-0.12, +0.74]"."""
        low, high = self.interval
        return f"{self.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def compare_welch(a: Sequence[float], b: Sequence[float]) -> MeanDifference:
    """Return mean(b) - mean(a) of independent runs with unequal variances (Welch's t-test)."""
    if min(len(a), len(b)) < 2:
        raise InputError(f"Welch's interval needs two or more runs on each side; got {len(a)} and {len(b)}")
    variances = [statistics.variance(side) / len(side) for side in (a, b)]
    total = sum(variances)
    mean = statistics.fmean(b) - statistics.fmean(a)
    if total == 0:
        return MeanDifference(mean, 0.0, len(a) + len(b) - 2)
    parts = [v * v / (len(side) - 1) for v, side in zip(variances, (a, b), strict=True)]
    return MeanDifference(mean, math.sqrt(total), total * total / sum(parts))


def pool_differences(strata: Sequence[Sequence[float]]) -> MeanDifference:
    """Return the mean of the differences of all strata (such as networks), with the variance inside the strata.

    Each difference has the same weight. The strata may have different means, and share one variance.
    """
    num_differences, num_strata = sum(map(len, strata)), len(strata)
    if not strata or min(map(len, strata)) < 1 or num_differences <= num_strata:
        raise InputError(
            "a pooled estimate needs at least one difference per stratum and two in one of them; "
            f"got {[len(stratum) for stratum in strata]}"
        )
    degrees_of_freedom = num_differences - num_strata
    squares = sum((x - statistics.fmean(stratum)) ** 2 for stratum in strata for x in stratum)
    variance = squares / degrees_of_freedom
    mean = statistics.fmean(x for stratum in strata for x in stratum)
    return MeanDifference(mean, math.sqrt(variance / num_differences), degrees_of_freedom)


def correlate_pairs(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Pearson's correlation of two runs of each seed, or NaN if one side is constant or has two seeds.

    Pairing by seed reduces the variance of a difference only if this correlation is positive.
    """
    if len(a) < 3 or min(statistics.pstdev(a), statistics.pstdev(b)) == 0:
        return math.nan
    return statistics.correlation(a, b)


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's method for their number, in the same order.

    If a hypothesis is rejected when its adjusted value is below 0.05, the probability of any false rejection is at most
    5 %, whatever the dependence of the comparisons.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted
