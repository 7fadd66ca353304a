from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lcrbnn.study.scaling import HOST, NETWORKS, NVLINK, Cluster, Link, Load, heard, step
from lcrbnn.train import pace
from lcrbnn.train.pace import Pace
from lcrbnn.train.ranks import ALONE


@dataclass
class Others:
    """A process among two, as seen from one; agreeing takes so long, and the other one wants so many steps."""

    clock: list[float]
    takes: float
    wants: int = 0
    size: int = 2
    asked: list[int] = field(default_factory=list)

    def most(self, *numbers: int) -> list[int]:
        self.clock[0] += self.takes
        self.asked.append(numbers[-1])
        return [*numbers[:-1], max(numbers[-1], self.wants)]


def agreements(others: Others, steps: range, seconds: float, *, each: bool = False) -> list[int]:
    """After which steps processes agree, if a step takes so long."""
    one, seen = Pace(others, each=each), []  # type: ignore[arg-type]  # all that is asked of it
    for done in steps:
        others.clock[0] += seconds
        if one.due(done):
            seen.append(done)
            assert one.agree(done, 7) == [7]
    return seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


def test_agreements_are_a_quarter_of_a_second_apart(clock: list[float]) -> None:
    assert agreements(Others(clock, 0.0), range(1, 801), 1 / 1024) == [1, 2, 3, 259, 515, 771]


def test_they_are_rarer_where_they_take_long_and_never_take_more_than_a_twentieth(clock: list[float]) -> None:
    seen = agreements(Others(clock, 0.5), range(1, 1201), 1 / 64)
    assert seen[-1] - seen[-2] == 640  # ten seconds


def test_slow_steps_are_agreed_on_one_by_one(clock: list[float]) -> None:
    assert agreements(Others(clock, 0.001), range(1, 6), 0.5) == [1, 2, 3, 4, 5]


def test_a_resumed_run_does_not_count_the_steps_before(clock: list[float]) -> None:
    assert agreements(Others(clock, 0.0), range(10**6, 10**6 + 5), 0.5) == list(range(10**6, 10**6 + 5))


def test_all_take_the_largest_number_that_one_wants(clock: list[float]) -> None:
    assert agreements(Others(clock, 0.0, wants=3), range(1, 9), 10.0) == [1, 4, 7]


def test_a_save_after_each_step_or_nobody_else_means_each_step(clock: list[float]) -> None:
    assert agreements(Others(clock, 0.0), range(1, 6), 1e-3, each=True) == [1, 2, 3, 4, 5]
    alone = Pace(ALONE, each=False)
    for done in range(1, 5):
        clock[0] += 1e-3
        assert alone.due(done)
        alone.agree(done, 0)


# -- the model of many ------------------------------------------------------------------------------------------------


def test_a_ring_sends_twice_the_bytes_and_a_tree_hops_less() -> None:
    link = Link(bandwidth=100.0, latency=0.5)
    assert link.ring(1000, 1) == link.tree(1000, 1) == 0
    assert link.ring(1000, 2) == 10 + 1
    assert link.ring(1000, 4) == 15 + 3
    assert link.tree(1000, 4) == 20 + 2
    assert link.tree(1000, 5) == 20 + 3
    assert link.send(1000, 4) == 18
    assert link.send(1000, 64) == 26


def test_a_step_is_as_slow_as_its_slowest_part() -> None:
    load = Load(parameters=10**7, image_seconds=1e-4, norms=20, file_bytes=1e5)
    cluster = Cluster(NETWORKS["1 x 25 Gb/s"], cores=4, core_images=1000.0)
    alone = step(load, cluster, 1, 100)
    assert (alone.compute, alone.send, alone.norms, alone.read) == (0.01, 0, 0, 0.025)
    assert alone.seconds == 0.025
    assert alone.rate == pytest.approx(4000)
    assert step(load, cluster, 8, 800).send == NVLINK.send(4e7, 8)
    far = step(load, cluster, 16, 1600)
    assert far.send == pytest.approx(2 * 15 / 16 * 4e7 / 2.5e9 + 30 * 30e-6)
    assert far.seconds == far.compute + far.send
    assert far.efficiency == pytest.approx(0.01 / far.seconds)
    fast = Cluster(NETWORKS["8 x 400 Gb/s"], core_images=1e9)
    assert fast.link(16).bandwidth == NVLINK.bandwidth  # the slowest link of the ring
    assert fast.link(16).latency == NETWORKS["8 x 400 Gb/s"].latency
    assert heard(2) == pytest.approx(0.25 + HOST.ring(8, 2))
    assert heard(1000) == pytest.approx(21 * HOST.ring(8, 1000))
