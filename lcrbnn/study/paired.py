"""What paired runs show: the mean difference, its 95 % interval, the smallest difference that would have shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from lcrbnn.errors import InputError

LEVEL = 0.95  # of the interval
STEPS, SPAN = 1000, 6.0  # of an integral over deviations, up to so many times the true one
POWER = 0.8  # with which the smallest visible difference would have been seen


class Paired(NamedTuple):
    """The differences b - a of runs with the same seeds."""

    pairs: int
    mean: float
    deviation: float  # of the differences
    low: float
    high: float
    visible: float  # a true difference of this size is seen, at the interval's level, four times out of five

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """Signed, with its interval: "+0.31 [-0.12, +0.74]"."""
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Compare runs a and b, an entry a seed, in the same order. Student's t on the differences."""
    if len(a) != len(b) or len(a) < 2:
        raise InputError(f"an interval needs two or more pairs of runs; got {len(a)} and {len(b)} runs")
    differences = [y - x for x, y in zip(a, b, strict=True)]
    n, mean, deviation = len(differences), statistics.fmean(differences), statistics.stdev(differences)
    error = deviation / math.sqrt(n)
    reach = quantile(0.5 + LEVEL / 2, n - 1) * error
    return Paired(n, mean, deviation, mean - reach, mean + reach, shift_seen(n - 1) * error)


@lru_cache
def shift_seen(freedom: int) -> float:
    """How many standard errors a true difference is that an interval leaves 0 out for with probability POWER.

    Over the length of an interval, which is chance too: Student's t, moved (the noncentral t).
    """
    edge = quantile(0.5 + LEVEL / 2, freedom)
    low, high = 0.0, 1.0
    while _seen(high, edge, freedom) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _seen(middle, edge, freedom) < POWER else (low, middle)
    return high


def _seen(shift: float, edge: float, freedom: int) -> float:
    """P(T > edge) of Student's t moved by a shift: a normal tail, averaged over the measured deviation."""
    normal = statistics.NormalDist()
    scale = 2 * (freedom / 2) ** (freedom / 2) / math.gamma(freedom / 2)
    total = normal.cdf(shift) / 2 if freedom == 1 else 0.0  # at a deviation of 0
    for i in range(1, STEPS):
        s = SPAN * i / STEPS  # the measured deviation over the true one
        total += s ** (freedom - 1) * math.exp(-freedom * s * s / 2) * normal.cdf(shift - edge * s)
    return scale * total * SPAN / STEPS


def quantile(share: float, freedom: int) -> float:
    """The value that Student's t with so many degrees of freedom stays under with this probability (0.5 to 1)."""
    low, high = 0.0, 1.0
    while _cumulative(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _cumulative(middle, freedom) < share else (low, middle)
    return high


def _cumulative(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0, by the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total, first = (0.0, 2) if odd else (1.0, 1)
    if odd and freedom > 1:
        total = term
    for k in range(first, freedom - 2 + (0 if odd else 1), 2):
        term *= square * k / (k + 1)
        total += term
    between = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + between / 2
