"""The waiting time of DevicePrefetcher, with a clock instead of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lcrbnn.data.loading import device_prefetcher as module
from lcrbnn.data.loading.device_prefetcher import MAX_STEPS_AHEAD, DevicePrefetcher


class Clock:
    """The time of the host, and the time at which the device has finished the queued work."""

    def __init__(self) -> None:
        self.now, self.device_done = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def queue_work(self, seconds: float) -> None:
        self.device_done = max(self.device_done, self.now) + seconds


class Event:
    def __init__(self, clock: Clock) -> None:
        self.clock, self.time = clock, max(clock.now, clock.device_done)

    def query(self) -> bool:
        return self.clock.now >= self.time

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.time)

    def elapsed_time(self, after: Event) -> float:
        return 1000 * (after.time - self.time)


def simulate_steps(
    monkeypatch: pytest.MonkeyPatch, read_time_s: float, step_time_s: float, num_batches: int
) -> tuple[float, float]:
    """Return the waiting time that the prefetcher counts, and the true idle time of the device between steps."""
    clock, idle_time_s = Clock(), 0.0
    monkeypatch.setattr(module, "time", clock)
    pool: Any = SimpleNamespace(release=lambda job: None)
    prefetcher = DevicePrefetcher(pool, torch.device("cuda"))
    monkeypatch.setattr(prefetcher, "_record_event", lambda: Event(clock))
    monkeypatch.setattr(prefetcher, "_copy_to_gpu", lambda job: None)

    def jobs() -> Iterator[Any]:
        for _ in range(num_batches):
            clock.now += read_time_s
            yield SimpleNamespace(broken_images={})

    for i, _ in enumerate(prefetcher._transfer_batches(jobs())):
        idle_time_s += max(0.0, clock.now - clock.device_done) if i else 0.0
        clock.queue_work(step_time_s)
    return prefetcher.waiting_time_s, idle_time_s


@pytest.mark.parametrize(
    ("read_time_s", "step_time_s", "idle_fraction"),
    [(0.1, 0.08, 0.2), (0.1, 0.001, 0.99), (0.1, 0.2, 0.0), (0.0, 0.1, 0.0)],
)
def test_waiting_time_is_the_idle_time_of_the_gpu(
    read_time_s: float, step_time_s: float, idle_fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_time_s, idle_time_s = simulate_steps(monkeypatch, read_time_s, step_time_s, 50)
    assert waiting_time_s - read_time_s == pytest.approx(idle_time_s)  # the wait for the first batch counts too
    assert idle_time_s == pytest.approx(49 * read_time_s * idle_fraction, abs=1e-9)


def test_pending_waits_are_counted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting_time_s, _ = simulate_steps(monkeypatch, 0.1, 0.09, MAX_STEPS_AHEAD)
    assert waiting_time_s == pytest.approx(0.1 + (MAX_STEPS_AHEAD - 1) * 0.01)
