from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bench.distributed.scaling_model import (
    HOST_LINK,
    NETWORKS,
    NVLINK,
    Cluster,
    Link,
    Load,
    predict_signal_delay,
    predict_step,
)
from lcrbnn.train.distributed import ranks as ranks_module
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, SyncInterval


@dataclass
class FakeRanks:
    """Two processes: a synchronization takes `sync_seconds`, and the other process proposes `other_proposal` steps."""

    clock: list[float]
    sync_seconds: float
    other_proposal: int = 0
    size: int = 2
    proposals: list[int] = field(default_factory=list)

    def all_reduce_max(self, *numbers: int) -> list[int]:
        self.clock[0] += self.sync_seconds
        self.proposals.append(numbers[-1])
        return [*numbers[:-1], max(numbers[-1], self.other_proposal)]


def list_sync_steps(ranks: FakeRanks, steps: range, seconds: float, *, every_step: bool = False) -> list[int]:
    """Return the steps after which processes synchronize, if each step takes this number of seconds."""
    interval, sync_steps = SyncInterval(ranks, every_step=every_step), []  # type: ignore[arg-type]  # has all that is used
    for step in steps:
        ranks.clock[0] += seconds
        if interval.is_due(step):
            sync_steps.append(step)
            assert interval.synchronize(step, 7) == [7]
    return sync_steps


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time_s = [1000.0]
    monkeypatch.setattr(ranks_module.time, "monotonic", lambda: time_s[0])
    return time_s


def test_synchronizations_are_a_quarter_of_a_second_apart(clock: list[float]) -> None:
    assert list_sync_steps(FakeRanks(clock, 0.0), range(1, 801), 1 / 1024) == [1, 2, 3, 259, 515, 771]


def test_slow_synchronizations_are_rarer_and_take_at_most_a_twentieth_of_the_time(clock: list[float]) -> None:
    actual = list_sync_steps(FakeRanks(clock, 0.5), range(1, 1201), 1 / 64)
    assert actual[-1] - actual[-2] == 640  # ten seconds


def test_slow_steps_are_synchronized_one_by_one(clock: list[float]) -> None:
    assert list_sync_steps(FakeRanks(clock, 0.001), range(1, 6), 0.5) == [1, 2, 3, 4, 5]


def test_a_resumed_run_ignores_the_steps_before(clock: list[float]) -> None:
    assert list_sync_steps(FakeRanks(clock, 0.0), range(10**6, 10**6 + 5), 0.5) == list(range(10**6, 10**6 + 5))


def test_all_processes_use_the_largest_proposed_interval(clock: list[float]) -> None:
    assert list_sync_steps(FakeRanks(clock, 0.0, other_proposal=3), range(1, 9), 10.0) == [1, 4, 7]


def test_a_single_process_or_a_save_per_step_synchronizes_each_step(clock: list[float]) -> None:
    assert list_sync_steps(FakeRanks(clock, 0.0), range(1, 6), 1e-3, every_step=True) == [1, 2, 3, 4, 5]
    single = SyncInterval(SINGLE_PROCESS, every_step=False)
    for step in range(1, 5):
        clock[0] += 1e-3
        assert single.is_due(step)
        single.synchronize(step, 0)


# -- the scaling model ------------------------------------------------------------------------------------------------


def test_a_ring_sends_twice_the_bytes_and_a_tree_has_fewer_hops() -> None:
    link = Link(bandwidth=100.0, latency=0.5)
    assert link.ring_seconds(1000, 1) == link.tree_seconds(1000, 1) == 0
    assert link.ring_seconds(1000, 2) == 10 + 1
    assert link.ring_seconds(1000, 4) == 15 + 3
    assert link.tree_seconds(1000, 4) == 20 + 2
    assert link.tree_seconds(1000, 5) == 20 + 3
    assert link.send_seconds(1000, 4) == 18
    assert link.send_seconds(1000, 64) == 26


def test_a_step_is_as_slow_as_its_slowest_part() -> None:
    load = Load(num_parameters=10**7, image_seconds=1e-4, num_norms=20, file_bytes=1e5)
    cluster = Cluster(NETWORKS["1 x 25 Gb/s"], cores_per_gpu=4, images_per_core_s=1000.0)
    single = predict_step(load, cluster, 1, 100)
    assert (single.compute_s, single.send_s, single.sync_norms_s, single.read_s) == (0.01, 0, 0, 0.025)
    assert single.total_s == 0.025
    assert single.images_per_s == pytest.approx(4000)
    assert predict_step(load, cluster, 8, 800).send_s == NVLINK.send_seconds(4e7, 8)
    far = predict_step(load, cluster, 16, 1600)
    assert far.send_s == pytest.approx(2 * 15 / 16 * 4e7 / 2.5e9 + 30 * 30e-6)
    assert far.total_s == far.compute_s + far.send_s
    assert far.efficiency == pytest.approx(0.01 / far.total_s)
    fast = Cluster(NETWORKS["8 x 400 Gb/s"], images_per_core_s=1e9)
    assert fast.slowest_link(16).bandwidth == NVLINK.bandwidth  # the slowest link of the ring
    assert fast.slowest_link(16).latency == NETWORKS["8 x 400 Gb/s"].latency
    assert predict_signal_delay(2) == pytest.approx(0.25 + HOST_LINK.ring_seconds(8, 2))
    assert predict_signal_delay(1000) == pytest.approx(21 * HOST_LINK.ring_seconds(8, 1000))
