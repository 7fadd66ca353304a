"""Axes of a chart, with round numbers as ticks and the mapping from values to positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROUND_STEPS = (1, 2, 2.5, 5, 10)


def find_axis_range(values: Iterable[float], included_values: Sequence[float] = ()) -> tuple[float, float]:
    """Return the smallest and the largest finite number. If both are equal, the range is widened."""
    finite = [v for v in [*values, *included_values] if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    return low, high


def make_linear_ticks(low: float, high: float, num_ticks: int = 5) -> list[float]:
    """Return about `num_ticks` round numbers. The first one is at most `low`, and the last one is at least `high`."""
    min_step = (high - low) / num_ticks
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(n * power for n in ROUND_STEPS if n * power >= min_step * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def make_log_ticks(low: float, high: float) -> list[float]:
    """Return at most six powers of ten that cover the range from low to high, which must both be positive."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    stride = max(1, math.ceil((last - first) / 5))
    last += -(last - first) % stride
    return [10.0**i for i in range(first, max(last, first + stride) + 1, stride)]


def format_ticks(values: Sequence[float]) -> list[str]:
    """Return the labels of the ticks. All labels have equally many decimals, and typographic minus signs."""
    if len(values) > 1 and values[0] > 0 and values[-1] / values[0] >= 1000:  # numbers with exponents are powers of ten
        return [f"{v:g}" if 1e-4 <= v < 1e5 else _format_scientific(v) for v in values]
    largest = max((abs(v) for v in values), default=0)
    if largest >= 1e5 or 0 < largest < 1e-3:
        return [_format_scientific(v) for v in values]
    digits = next((d for d in range(6) if all(abs(round(v, d) - v) < 1e-9 for v in values)), 6)
    return [f"{v:,.{digits}f}".replace("-", "−") for v in values]


def _format_scientific(value: float) -> str:
    text = f"{value:.2g}"
    if "e" not in text:
        return text.replace("-", "−")
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


@dataclass(frozen=True)
class AxisScale:
    """A linear or logarithmic axis, with its range, the positions of both ends, and its ticks."""

    low: float
    high: float
    end_positions: tuple[float, float]
    ticks: tuple[float, ...]
    is_log: bool = False

    @classmethod
    def fit(
        cls,
        values: Sequence[float],
        included_values: Sequence[float],
        end_positions: tuple[float, float],
        *,
        is_log: bool = False,
        is_tight: bool = False,
        num_ticks: int = 5,
    ) -> AxisScale:
        """Return an axis that covers all numbers.

        Its ends are ticks or, if `is_tight`, the smallest and largest number.
        """
        is_log = is_log and all(v > 0 for v in [*values, *included_values])
        low, high = find_axis_range(values, included_values)
        ticks = make_log_ticks(low, high) if is_log else make_linear_ticks(low, high, num_ticks)
        if is_tight:
            ticks = [v for v in ticks if low <= v <= high]
            return cls(low, high, end_positions, tuple(ticks))
        return cls(ticks[0], ticks[-1], end_positions, tuple(ticks), is_log)

    def __call__(self, value: float) -> float:
        """Return the position of a number.

        A number outside of the range gives the nearer end, and nan the first end.
        """
        low, high, position = (math.log10(v) if self.is_log else v for v in (self.low, self.high, value))
        fraction = (position - low) / (high - low)
        fraction = 0.0 if math.isnan(fraction) else min(max(fraction, 0.0), 1.0)
        return self.end_positions[0] + (self.end_positions[1] - self.end_positions[0]) * fraction
