"""What is counted as waiting for images, with a GPU made of a clock."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lcrbnn.train import channel as module
from lcrbnn.train.channel import AHEAD, Channel


class Clock:
    """The host's time, and when the device has done all that is ordered."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def order(self, seconds: float) -> None:
        self.done = max(self.done, self.now) + seconds


class Event:
    def __init__(self, clock: Clock) -> None:
        self.clock, self.at = clock, max(clock.now, clock.done)

    def query(self) -> bool:
        return self.clock.now >= self.at

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.at)

    def elapsed_time(self, after: Event) -> float:
        return 1000 * (after.at - self.at)


def waited(monkeypatch: pytest.MonkeyPatch, reading: float, step: float, batches: int) -> tuple[float, float]:
    """Seconds that the channel counts, and that the device really stood still, between two steps."""
    clock, still = Clock(), 0.0
    monkeypatch.setattr(module, "time", clock)
    pool: Any = SimpleNamespace(release=lambda job: None)
    made = Channel(pool, torch.device("cuda"))
    monkeypatch.setattr(made, "_now", lambda: Event(clock))
    monkeypatch.setattr(made, "_to_gpu", lambda job: None)

    def jobs() -> Iterator[Any]:
        for _ in range(batches):
            clock.now += reading
            yield SimpleNamespace(broken={})

    for i, _ in enumerate(made._carry(jobs())):
        still += max(0.0, clock.now - clock.done) if i else 0.0
        clock.order(step)
    return made.waited, still


@pytest.mark.parametrize(
    ("reading", "step", "share"), [(0.1, 0.08, 0.2), (0.1, 0.001, 0.99), (0.1, 0.2, 0.0), (0.0, 0.1, 0.0)]
)
def test_a_gpu_waits_while_it_stands_still_and_no_longer(
    reading: float, step: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, still = waited(monkeypatch, reading, step, 50)
    assert counted - reading == pytest.approx(still)  # the first batch is waited for too
    assert still == pytest.approx(49 * reading * share, abs=1e-9)


def test_what_is_not_reached_yet_is_counted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, _ = waited(monkeypatch, 0.1, 0.09, AHEAD)
    assert counted == pytest.approx(0.1 + (AHEAD - 1) * 0.01)
