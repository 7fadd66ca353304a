"""Timing calls fairly: in turns, so that whatever disturbs the machine disturbs all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

WARM = 3  # calls of each before those that count


class Timed(NamedTuple):
    """Milliseconds of a call: the median, the best, and how many were made."""

    median: float
    best: float
    calls: int


def in_turns(calls: Mapping[str, Callable[[], Any]], count: int, seconds: float | None = None) -> dict[str, Timed]:
    """Call each once, then each again, so many times; with `seconds`, stop early when that long has passed."""
    for call in calls.values():
        for _ in range(WARM):
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = None if seconds is None else time.monotonic() + seconds
    for turn in range(count):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(1000 * (time.perf_counter() - began))
        if end is not None and turn >= 9 and time.monotonic() > end:
            break
    return {name: Timed(statistics.median(t), min(t), len(t)) for name, t in taken.items()}
