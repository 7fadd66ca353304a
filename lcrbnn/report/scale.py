"""From numbers to places along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lcrbnn.report.ticks import log_ticks, span, ticks


@dataclass(frozen=True)
class Scale:
    """A straight or logarithmic axis: which numbers lie at its two ends, and which are written along it."""

    low: float
    high: float
    ends: tuple[float, float]
    ticks: tuple[float, ...]
    log: bool = False

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        include: Sequence[float],
        ends: tuple[float, float],
        *,
        log: bool = False,
        tight: bool = False,
        count: int = 5,
    ) -> Scale:
        """An axis that shows all of the numbers; it ends at round ones, or if `tight` where the numbers do."""
        log = log and all(v > 0 for v in [*values, *include])
        low, high = span(values, include)
        marks = log_ticks(low, high) if log else ticks(low, high, count)
        if tight:
            marks = [v for v in marks if low <= v <= high]
            return cls(low, high, ends, tuple(marks))
        return cls(marks[0], marks[-1], ends, tuple(marks), log)

    def __call__(self, value: float) -> float:
        """Where a number lies; one that is out of range, or none, at the end that is nearest."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        share = (at - low) / (high - low)
        return self.ends[0] + (self.ends[1] - self.ends[0]) * (min(max(share, 0.0), 1.0) if share == share else 0.0)
