"""Worker processes: the batches do not depend on their number, and failures end a run in bounded time."""

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

from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.data.image_files.image_index import ImageIndex, ImageLocation
from lcrbnn.data.loading.worker_pool import NUM_BATCH_SLOTS, BatchJob, BatchRequest, WorkerPool
from lcrbnn.errors import RunFailed
from tests.data.image_folders import make_image_files, write_folder
from tests.train.helpers import make_environment

IMAGE_SIZE = 16


@pytest.fixture(scope="module")
def image_index(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    return find_image_folder(
        write_folder(make_image_files(train=20, val=1, size=(IMAGE_SIZE, IMAGE_SIZE)), tmp_path_factory.mktemp("tree"))
    ).train


def make_pool(num_workers: int, max_batch_size: int = 12, worker_timeout_s: float = 30.0) -> WorkerPool:
    return WorkerPool(IMAGE_SIZE, 1.0, max_batch_size, num_workers, worker_timeout_s=worker_timeout_s)


def make_requests(
    image_index: ImageIndex, batch_size: int = 12, crop_key: int | None = None, repetitions: int = 1
) -> Iterator[BatchRequest]:
    for _ in range(repetitions):
        for start in range(0, len(image_index), batch_size):
            yield BatchRequest(
                image_index.take(np.arange(start, start + batch_size)), crop_key, range(start, start + batch_size)
            )


def make_request(*locations: ImageLocation) -> BatchRequest:
    return BatchRequest(ImageIndex(locations, [0] * len(locations)))


def copy_batches(pool: WorkerPool, requests: Iterator[BatchRequest]) -> list[np.ndarray]:
    batches = []
    for job in pool.read_batches(requests):
        assert not job.broken_images
        batches.append(job.images.copy())
        pool.release(job)
    return batches


def release_batches(pool: WorkerPool, jobs: Iterator[BatchJob]) -> None:
    for job in jobs:
        pool.release(job)


def wait_until_dead(pids: list[int], timeout_s: float = 5.0) -> bool:
    """Return whether these processes end within the timeout. A zombie counts as dead."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_batches_do_not_depend_on_the_number_of_workers(image_index: ImageIndex) -> None:
    expected = copy_batches(make_pool(0), make_requests(image_index))
    with make_pool(2) as pool:
        batches = copy_batches(pool, make_requests(image_index))
        pids = pool.pids
    assert len(expected) == 5
    assert all(np.array_equal(a, b) for a, b in zip(batches, expected, strict=True))
    assert wait_until_dead(pids, 0.1)


def test_a_new_call_drops_the_previous_one_and_frees_its_memory(image_index: ImageIndex) -> None:
    expected = copy_batches(make_pool(0), make_requests(image_index))
    with make_pool(1) as pool:
        for _ in range(6):
            jobs = pool.read_batches(make_requests(image_index, repetitions=9))
            pool.release(next(jobs))
        assert np.array_equal(copy_batches(pool, make_requests(image_index)), expected)
        assert sorted(pool._free_slots) == list(range(NUM_BATCH_SLOTS))
        with pytest.raises(RuntimeError, match="a later call of read_batches"):
            next(jobs)


def test_a_broken_image_is_reported_by_position_and_is_black(image_index: ImageIndex, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    broken_image = image_index[0]._replace(name=str(tmp_path / "bad.png"))
    for num_workers in (0, 1):
        with make_pool(num_workers) as pool:
            (job,) = pool.read_batches([make_request(image_index[0], image_index[1], broken_image, image_index[2])])
            assert job.broken_images == {2: "it is not an image that Pillow can read"}
            assert not job.images[2].any()
            assert job.images[3].any()


def test_other_errors_name_the_image(image_index: ImageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_memory_error(content: bytes, image_size: int, resize_ratio: float) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr("lcrbnn.data.loading.worker.center_crop_image", raise_memory_error)
    with make_pool(0) as pool, pytest.raises(RunFailed, match=r"000\.JPEG could not be read: MemoryError$"):
        next(pool.read_batches([make_request(image_index[0])]))


def test_a_batch_larger_than_a_slot_is_rejected(image_index: ImageIndex) -> None:
    with make_pool(0) as pool, pytest.raises(ValueError, match="a batch of 13 images does not fit; the maximum is 12"):
        pool.read_batches(make_requests(image_index, batch_size=13))


def test_a_killed_worker_raises_at_once(image_index: ImageIndex) -> None:
    with make_pool(2) as pool:
        jobs = pool.read_batches(make_requests(image_index, repetitions=1000))
        pool.release(next(jobs))
        pids = pool.pids
        os.kill(pids[1], signal.SIGKILL)
        start_time = time.monotonic()
        with pytest.raises(RunFailed, match="was killed by signal 9; the machine may have run out of memory"):
            release_batches(pool, jobs)
        assert time.monotonic() - start_time < 10
    assert wait_until_dead(pids)


def test_a_worker_that_hangs_raises_after_the_timeout(image_index: ImageIndex) -> None:
    with make_pool(2, worker_timeout_s=1.0) as pool:
        jobs = pool.read_batches(make_requests(image_index, repetitions=1000))
        pool.release(next(jobs))
        pids = pool.pids
        os.kill(pids[1], signal.SIGSTOP)  # it can neither reply nor exit
        start_time = time.monotonic()
        with pytest.raises(RunFailed, match="did not respond for 1 seconds while it read"):
            release_batches(pool, jobs)  # batches that were complete before come first
        assert time.monotonic() - start_time < 10
        start_time = time.monotonic()
    assert time.monotonic() - start_time < 10
    assert wait_until_dead(pids)


def test_workers_ignore_signals(image_index: ImageIndex) -> None:
    with make_pool(1) as pool:
        jobs = pool.read_batches(make_requests(image_index, repetitions=3))
        pool.release(next(jobs))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pool.pids[0], number)
        release_batches(pool, jobs)


PARENT_PROGRAM = """
import sys
from lcrbnn.data.image_files.image_index import ImageIndex, ImageLocation
from lcrbnn.data.loading.worker_pool import BatchRequest, WorkerPool
pool = WorkerPool(16, 1.0, 4, 2)
pool.read_batches([BatchRequest(ImageIndex([ImageLocation(path, path)], [0])) for path in sys.argv[1:]])
print(*pool.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["waiting", "hanging", "stopped"])
def test_no_worker_outlives_a_killed_parent(state: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.png") for i in range(4)]
    for path in paths if state == "hanging" else []:
        os.mkfifo(path)
    command = [sys.executable, "-c", PARENT_PROGRAM, *paths]
    with subprocess.Popen(
        command, env=make_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(1.5)  # until the workers read
        assert all(is_alive(pid) for pid in pids)
        for pid in pids if state == "stopped" else []:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    assert len(pids) == 2
    assert wait_until_dead(pids)
