"""Processes that read images: the same batches by any number of them, and an end in bounded time if one breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data.listing import Listing, Member
from lcrbnn.data.tree import find_tree
from lcrbnn.errors import Failed
from lcrbnn.train.pool import Job, Pool, Request
from tests.data.trees import as_folder, generated
from tests.train.helpers import environment

SIDE = 16


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Listing:
    return find_tree(as_folder(generated(train=20, val=1, size=(SIDE, SIDE)), tmp_path_factory.mktemp("tree"))).train


def pool(workers: int, capacity: int = 12, patience: float = 30.0) -> Pool:
    return Pool(SIDE, 1.0, capacity, workers, patience=patience)


def requests(images: Listing, size: int = 12, key: int | None = None, times: int = 1) -> Iterator[Request]:
    for _ in range(times):
        for start in range(0, len(images), size):
            yield Request(images.take(np.arange(start, start + size)), key, range(start, start + size))


def asked(*members: Member) -> Request:
    return Request(Listing(members, [0] * len(members)))


def squares(made: Pool, asked: Iterator[Request]) -> list[np.ndarray]:
    found = []
    for job in made.run(asked):
        assert not job.broken
        found.append(job.squares.copy())
        made.release(job)
    return found


def finish(made: Pool, batches: Iterator[Job]) -> None:
    for job in batches:
        made.release(job)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    """Whether these processes end soon; a zombie that nobody has waited for counts as gone."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_any_number_of_processes_reads_the_same_batches(images: Listing) -> None:
    wanted = squares(pool(0), requests(images))
    with pool(2) as two:
        found = squares(two, requests(images))
        pids = two.pids
    assert len(wanted) == 5
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert gone(pids, 0.1)


def test_a_new_list_ends_the_one_before_and_no_memory_is_lost(images: Listing) -> None:
    wanted = squares(pool(0), requests(images))
    with pool(1) as one:
        for _ in range(6):
            begun = one.run(requests(images, times=9))
            one.release(next(begun))
        assert np.array_equal(squares(one, requests(images)), wanted)
        assert sorted(one._free) == list(range(one.slots))
        with pytest.raises(RuntimeError, match="has taken over"):
            next(begun)


def test_a_broken_image_is_named_by_its_place_and_is_black(images: Listing, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    bad = images[0]._replace(name=str(tmp_path / "bad.png"))
    for workers in (0, 1):
        with pool(workers) as made:
            (job,) = made.run([asked(images[0], images[1], bad, images[2])])
            assert job.broken == {2: "it is no image that Pillow knows"}
            assert not job.squares[2].any()
            assert job.squares[3].any()


def test_what_fails_for_another_reason_names_the_image(images: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(content: bytes, side: int, margin: float) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr("lcrbnn.train.reader.evaluation_square", full)
    with pool(0) as one, pytest.raises(Failed, match=r"000\.JPEG could not be read: MemoryError$"):
        next(one.run([asked(images[0])]))


def test_a_batch_that_is_too_large_is_not_written_over_another(images: Listing) -> None:
    with pool(0) as made, pytest.raises(ValueError, match="13 images do not fit"):
        made.run(requests(images, size=13))


def test_a_killed_process_ends_the_work_at_once(images: Listing) -> None:
    with pool(2) as made:
        batches = made.run(requests(images, times=1000))
        made.release(next(batches))
        pids = made.pids
        os.kill(pids[1], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(Failed, match="was ended by signal 9; perhaps memory ran out"):
            finish(made, batches)
        assert time.monotonic() - began < 10
    assert gone(pids)


def test_a_process_that_hangs_ends_the_work_when_patience_does(images: Listing) -> None:
    with pool(2, patience=1.0) as made:
        batches = made.run(requests(images, times=1000))
        made.release(next(batches))
        pids = made.pids
        os.kill(pids[1], signal.SIGSTOP)  # it can neither answer nor end
        began = time.monotonic()
        with pytest.raises(Failed, match="said nothing for 1 seconds; it was given"):
            finish(made, batches)  # what it had read before is given out first
        assert time.monotonic() - began < 10
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert gone(pids)


def test_signals_are_left_to_the_parent(images: Listing) -> None:
    with pool(1) as made:
        batches = made.run(requests(images, times=3))
        made.release(next(batches))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(made.pids[0], number)
        finish(made, batches)


ORPHAN = """
import sys
from lcrbnn.data.listing import Listing, Member
from lcrbnn.train.pool import Pool, Request
pool = Pool(16, 1.0, 4, 2)
pool.run([Request(Listing([Member(path, path)], [0])) for path in sys.argv[1:]])
print(*pool.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["waiting", "hanging", "stopped"])
def test_no_process_outlives_a_parent_that_is_killed(state: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.png") for i in range(4)]
    for path in paths if state == "hanging" else []:
        os.mkfifo(path)
    words = [sys.executable, "-c", ORPHAN, *paths]
    with subprocess.Popen(words, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(1.5)  # they have begun
        assert all(alive(pid) for pid in pids)
        for pid in pids if state == "stopped" else []:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    assert len(pids) == 2
    assert gone(pids)
