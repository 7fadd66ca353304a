"""Round numbers along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

NICE = (1, 2, 2.5, 5, 10)


def span(values: Iterable[float], include: Sequence[float] = ()) -> tuple[float, float]:
    """The range of all finite numbers, a little wider if they are all the same."""
    known = [v for v in [*values, *include] if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if low == high:
        reach = abs(low) * 0.1 or 1.0
        return low - reach, high + reach
    return low, high


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover low to high: the first is at most `low`, the last at least `high`."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in NICE if n * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that cover low to high, both above 0; at most six of them."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    every = max(1, math.ceil((last - first) / 5))
    last += -(last - first) % every
    return [10.0**i for i in range(first, max(last, first + every) + 1, every)]


def shown(values: Sequence[float]) -> list[str]:
    """The numbers of an axis, all with the same digits, and a minus sign that is one."""
    if len(values) > 1 and values[0] > 0 and values[-1] / values[0] >= 1000:  # powers of ten: no zeros behind the point
        return [f"{v:g}" if 1e-4 <= v < 1e5 else _power(v) for v in values]
    large = max((abs(v) for v in values), default=0)
    if large >= 1e5 or 0 < large < 1e-3:
        return [_power(v) for v in values]
    digits = next((d for d in range(6) if all(abs(round(v, d) - v) < 1e-9 for v in values)), 6)
    return [f"{v:,.{digits}f}".replace("-", "−") for v in values]


def _power(value: float) -> str:
    text = f"{value:.2g}"
    if "e" not in text:
        return text.replace("-", "−")
    head, _, tail = text.partition("e")
    return f"{head}e{int(tail)}".replace("-", "−")
