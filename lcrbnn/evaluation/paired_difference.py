"""Compare runs in pairs, and compute mean difference, 95 % confidence interval and smallest detectable difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from lcrbnn.errors import InputError
from lcrbnn.evaluation.student_t import student_t_quantile

CONFIDENCE_LEVEL = 0.95  # probability that the interval contains the true difference
DETECTION_POWER = 0.8  # probability with which the interval of a detectable difference excludes 0
# The noncentral t distribution is an integral over the ratio (measured std / true std), here from 0 to MAX_STD_RATIO.
NUM_INTEGRATION_STEPS, MAX_STD_RATIO = 1000, 6.0


class PairedDifference(NamedTuple):
    """Statistics of the differences b - a between runs a and b with the same seeds."""

    num_pairs: int
    mean: float
    std: float  # standard deviation of the paired differences
    low: float  # lower end of the 95 % confidence interval
    high: float
    detectable: float  # true difference for which the confidence interval excludes 0 with probability 0.8

    @property
    def is_significant(self) -> bool:
        """Return whether the confidence interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """Return the mean with its sign and its interval, such as "+0.31 [-0.12, +0.74]"."""
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def compare_paired(a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    """Return the paired comparison of runs a and b, with Student's t distribution.

    Both have one value per seed, same order.
    """
    if len(a) != len(b) or len(a) < 2:
        raise InputError(f"an interval needs two or more pairs of runs; got {len(a)} and {len(b)} runs")
    differences = [y - x for x, y in zip(a, b, strict=True)]
    n, mean, std = len(differences), statistics.fmean(differences), statistics.stdev(differences)
    standard_error = std / math.sqrt(n)
    half_width = student_t_quantile(0.5 + CONFIDENCE_LEVEL / 2, n - 1) * standard_error
    return PairedDifference(
        n, mean, std, mean - half_width, mean + half_width, detectable_difference(n - 1) * standard_error
    )


@lru_cache
def detectable_difference(degrees_of_freedom: int) -> float:
    """Return the smallest true difference that is detected with probability DETECTION_POWER, in standard errors.

    Detected means that the confidence interval excludes 0. The length of an interval is random too, so the statistic
    follows the noncentral t distribution.
    """
    critical_value = student_t_quantile(0.5 + CONFIDENCE_LEVEL / 2, degrees_of_freedom)
    low, high = 0.0, 1.0
    while _noncentral_t_tail(high, critical_value, degrees_of_freedom) < DETECTION_POWER:
        high *= 2
    for _ in range(50):
        midpoint = (low + high) / 2
        low, high = (
            (midpoint, high)
            if _noncentral_t_tail(midpoint, critical_value, degrees_of_freedom) < DETECTION_POWER
            else (low, midpoint)
        )
    return high


def _noncentral_t_tail(shift: float, critical_value: float, degrees_of_freedom: int) -> float:
    """Return P(T > critical_value) for the noncentral t distribution.

    It is a normal tail probability, averaged over the measured std.
    """
    normal = statistics.NormalDist()
    scale = 2 * (degrees_of_freedom / 2) ** (degrees_of_freedom / 2) / math.gamma(degrees_of_freedom / 2)
    # Term of the integral at which the ratio of measured to true standard deviation is 0
    total = normal.cdf(shift) / 2 if degrees_of_freedom == 1 else 0.0
    for i in range(1, NUM_INTEGRATION_STEPS):
        # ratio of the measured standard deviation to the true one
        std_ratio = MAX_STD_RATIO * i / NUM_INTEGRATION_STEPS
        total += (
            std_ratio ** (degrees_of_freedom - 1)
            * math.exp(-degrees_of_freedom * std_ratio * std_ratio / 2)
            * normal.cdf(shift - critical_value * std_ratio)
        )
    return scale * total * MAX_STD_RATIO / NUM_INTEGRATION_STEPS
