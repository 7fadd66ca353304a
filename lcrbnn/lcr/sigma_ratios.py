"""Means and texts of sigma ratios. The ratio of a feature map that has only one sign is NaN and is shown as "n/a"."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

NOT_AVAILABLE = "n/a"


def mean_ratio_gap(sigma_ratios: Iterable[float]) -> float:
    """Return the mean |sigma_B / sigma_F - 1| of the ratios that are not NaN, or NaN if there are none."""
    gaps = [abs(ratio - 1) for ratio in sigma_ratios if not math.isnan(ratio)]
    return statistics.fmean(gaps) if gaps else math.nan


def format_ratio(value: float, format_spec: str) -> str:
    """Return a ratio, or a mean of ratios, as text."""
    return NOT_AVAILABLE if math.isnan(value) else format(value, format_spec)
