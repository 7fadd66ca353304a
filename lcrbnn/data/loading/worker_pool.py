"""Worker processes that read batches of images in advance and in order. They write the images into shared memory.

If a worker dies or does not respond for `worker_timeout_s` seconds, the parent raises RunFailed. Workers end with their
parent. The shared memory has no name, so the system frees it. So no process and no memory is left behind, however a run
ends.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.data.image_files.image_index import ImageIndex, ImageReader
from lcrbnn.data.loading.worker import WorkChunk, WorkReply, read_chunk
from lcrbnn.errors import InputError, RunFailed

WORKER_TIMEOUT_S = 60.0
STARTUP_TIMEOUT_S = 60.0  # minimum timeout in seconds of a new worker, which first has to load its libraries
NUM_BATCH_SLOTS = 4  # number of batches in shared memory: two are read, one is in use, one is copied to a device
MAX_CHUNK_IMAGES = 32
# Maximum number of chunks sent to a worker at the same time; they must fit into the buffer of a pipe
MAX_CHUNKS_PER_WORKER = 4
SHUTDOWN_TIMEOUT_S = 2.0  # number of seconds that a worker has to exit before it is killed

# Program of a worker. A worker gets the import path of its parent, and its arguments as JSON.
_WORKER_PROGRAM = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a.pop('path'); "
    "from lcrbnn.data.loading.worker import run_worker; run_worker(**a)"
)


class BatchRequest(NamedTuple):
    """The images of a batch, cropped randomly by `positions` if `crop_key` is set, and at the centre otherwise."""

    image_index: ImageIndex
    crop_key: int | None = None
    positions: Sequence[int] = ()


class BatchJob:
    """A batch that is complete or being read.

    `images` (n, image_size, image_size, 3) is valid until `release` is called.
    """

    def __init__(self, slot: int, request: BatchRequest, images: np.ndarray) -> None:
        """Create a job without chunks for the batch in this slot of the shared memory."""
        self.slot, self.request, self.images = slot, request, images
        self.unfinished_chunks: set[int] = set()  # numbers of the chunks that are not read yet
        # Dictionary from the position of a broken image in the batch to the reason
        self.broken_images: dict[int, str] = {}
        self.is_dropped = False


class _Worker:
    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self.process, self.connection = process, connection
        self.assigned_chunks: dict[int, WorkChunk] = {}
        self.last_reply_time = time.monotonic()
        self.has_replied = False


class WorkerPool:
    """A pool of worker processes. `read_batches` yields batches in the order of the requests.

    With `num_workers` = 0, the calling process reads the images itself.
    """

    def __init__(
        self,
        image_size: int,
        resize_ratio: float,
        max_batch_size: int,
        num_workers: int,
        *,
        worker_timeout_s: float = WORKER_TIMEOUT_S,
    ) -> None:
        """Store the settings. The workers start at the first call of `read_batches`."""
        self.image_size, self.resize_ratio = image_size, resize_ratio
        self.max_batch_size, self.num_workers = max_batch_size, num_workers
        self.worker_timeout_s = worker_timeout_s
        # shared memory (NUM_BATCH_SLOTS * max_batch_size, h, w, 3); exists after the start
        self.shared_images: np.ndarray | None = None
        self._workers: list[_Worker] = []
        self._free_slots: list[int] = []
        self._unassigned_chunks: deque[WorkChunk] = deque()
        # dictionary from a chunk_id to the job and the position of the chunk in its batch
        self._chunk_owners: dict[int, tuple[BatchJob, int]] = {}
        self._next_chunk_id = 0
        self._pending_jobs: deque[BatchJob] = deque()
        self._call_number = 0
        self._reader = ImageReader()

    def read_batches(self, requests: Iterable[BatchRequest]) -> Iterator[BatchJob]:
        """Yield the requested batches in order. Unfinished batches of an earlier call are dropped."""
        self._start_workers()
        self._drop_pending_jobs()
        self._call_number += 1
        call_number, remaining_requests = self._call_number, iter(requests)
        self._submit_requests(remaining_requests)
        return self._deliver_jobs(call_number, remaining_requests)

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def release(self, job: BatchJob) -> None:
        """Mark the memory of a batch as free."""
        self._free_slots.append(job.slot)

    def close(self) -> None:
        """Stop all workers. Kill those that do not exit within SHUTDOWN_TIMEOUT_S."""
        for worker in self._workers:
            worker.connection.close()
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
        for worker in self._workers:
            try:
                worker.process.wait(SHUTDOWN_TIMEOUT_S)
            # the worker is stuck in a system call; the kernel kills it when that call returns
            except subprocess.TimeoutExpired:
                continue
        self._workers, self.shared_images = [], None
        self._reader.close()

    def __enter__(self) -> WorkerPool:
        """Return the pool. The with statement closes the pool at the end of its block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all workers."""
        self.close()

    def _deliver_jobs(self, call_number: int, remaining_requests: Iterator[BatchRequest]) -> Iterator[BatchJob]:
        while True:
            if call_number != self._call_number:
                raise RuntimeError("a later call of read_batches uses these workers now")
            self._submit_requests(remaining_requests)
            if not self._pending_jobs:
                return
            job = self._pending_jobs[0]
            start_time = time.monotonic()
            while job.unfinished_chunks:
                self._wait_for_replies(start_time)
            self._pending_jobs.popleft()
            # Submit the next requests before the yield. So the workers read while the caller uses this batch.
            self._submit_requests(remaining_requests)
            yield job

    def _submit_requests(self, remaining_requests: Iterator[BatchRequest]) -> None:
        self._receive_replies(0)
        while self._free_slots and (request := next(remaining_requests, None)) is not None:
            count = len(request.image_index)
            if count > self.max_batch_size:
                raise ValueError(f"a batch of {count} images does not fit; the maximum is {self.max_batch_size}")
            slot = self._free_slots.pop()
            assert self.shared_images is not None
            first_row = slot * self.max_batch_size
            job = BatchJob(slot, request, self.shared_images[first_row : first_row + count])
            self._pending_jobs.append(job)
            # Make at least two chunks per worker. Then all workers finish a batch at nearly the same time.
            chunk_size = max(1, min(MAX_CHUNK_IMAGES, -(-count // max(1, 2 * self.num_workers))))
            for start in range(0, count, chunk_size):
                part = slice(start, min(start + chunk_size, count))
                chunk_index = request.image_index.take(np.arange(part.start, part.stop))
                chunk_id = self._next_chunk_id
                positions = request.positions[part]
                chunk = WorkChunk(chunk_id, first_row + start, chunk_index, request.crop_key, positions)
                self._chunk_owners[chunk_id] = job, start
                job.unfinished_chunks.add(chunk_id)
                self._unassigned_chunks.append(chunk)
                self._next_chunk_id += 1
        self._assign_chunks()

    def _assign_chunks(self) -> None:
        while self._unassigned_chunks and self._workers:
            worker = min(self._workers, key=lambda candidate: len(candidate.assigned_chunks))
            if len(worker.assigned_chunks) >= MAX_CHUNKS_PER_WORKER:
                return
            chunk = self._unassigned_chunks.popleft()
            if not worker.assigned_chunks:
                # an idle worker owes no reply, so its timeout starts with this chunk
                worker.last_reply_time = time.monotonic()
            worker.assigned_chunks[chunk.chunk_id] = chunk
            try:
                worker.connection.send(chunk)
            except OSError:
                raise self._describe_dead_worker(worker) from None

    def _wait_for_replies(self, start_time: float) -> None:
        """Wait for replies of workers and record them. Raise RunFailed if a busy worker has not replied for too long.

        `start_time` is the time at which the wait for the next batch began. The timeout only counts time in which the
        caller waits for a batch. Without workers, this function reads one chunk in the current process.
        """
        if not self._workers:
            chunk = self._unassigned_chunks.popleft()
            assert self.shared_images is not None
            broken_images = read_chunk(chunk, self.shared_images, self.resize_ratio, self._reader)
            self._record_reply(WorkReply(chunk.chunk_id, broken_images))
            return
        self._receive_replies(min(1.0, self.worker_timeout_s / 4))
        self._assign_chunks()
        now = time.monotonic()
        for worker in self._workers:
            timeout_s = self.worker_timeout_s if worker.has_replied else max(STARTUP_TIMEOUT_S, self.worker_timeout_s)
            if worker.assigned_chunks and now - max(worker.last_reply_time, start_time) > timeout_s:
                name = next(iter(worker.assigned_chunks.values())).image_index[0].name
                raise RunFailed(
                    f"a data-loading worker did not respond for {timeout_s:g} seconds while it read {name} "
                    "and the images after it"
                )

    def _receive_replies(self, timeout_s: float) -> None:
        workers: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(workers), timeout_s) if workers else ():
            worker = workers[connection]
            try:
                reply: WorkReply = worker.connection.recv()
            except (EOFError, OSError):
                raise self._describe_dead_worker(worker) from None
            worker.last_reply_time, worker.has_replied = time.monotonic(), True
            del worker.assigned_chunks[reply.chunk_id]
            self._record_reply(reply)

    def _record_reply(self, reply: WorkReply) -> None:
        if reply.failure is not None:
            raise RunFailed(f"a data-loading worker failed: {reply.failure}")
        job, start = self._chunk_owners.pop(reply.chunk_id)
        job.unfinished_chunks.discard(reply.chunk_id)
        job.broken_images |= {start + i: reason for i, reason in reply.broken_images.items()}
        if job.is_dropped and not job.unfinished_chunks:
            self.release(job)

    def _drop_pending_jobs(self) -> None:
        """Drop the batches of an earlier call.

        If a worker still writes to their memory, it is freed after the worker's last reply.
        """
        unassigned_ids = {chunk.chunk_id for chunk in self._unassigned_chunks}
        self._unassigned_chunks.clear()
        for chunk_id in unassigned_ids:
            job, _ = self._chunk_owners.pop(chunk_id)
            job.unfinished_chunks.discard(chunk_id)
        for job in self._pending_jobs:
            job.is_dropped = True
            if not job.unfinished_chunks:
                self.release(job)
        self._pending_jobs.clear()

    def _describe_dead_worker(self, worker: _Worker) -> RunFailed:
        """Return the error for a worker that has ended, with its exit code or its signal."""
        try:
            code = worker.process.wait(SHUTDOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        event = "closed its pipe" if code is None else f"ended with code {code}"
        event = f"was killed by signal {-code}" if code is not None and code < 0 else event
        hint = "; the machine may have run out of memory" if code == -9 else ""
        return RunFailed(f"a data-loading worker {event}{hint}")

    def _start_workers(self) -> None:
        if self.shared_images is not None:
            return
        if find_spec("PIL") is None:
            raise InputError("reading image files needs Pillow, which is not installed")
        size = NUM_BATCH_SLOTS * self.max_batch_size * self.image_size**2 * 3
        handle = _create_shared_memory(size)
        try:
            # The workers inherit the file descriptor of the shared memory. The memory stays mapped here after the
            # descriptor is closed.
            shared_memory = mmap.mmap(handle, size)
            self.shared_images = np.frombuffer(shared_memory, np.uint8).reshape(-1, self.image_size, self.image_size, 3)
            self._free_slots = list(range(NUM_BATCH_SLOTS))
            for _ in range(self.num_workers):
                self._workers.append(self._start_worker(handle))
        finally:
            os.close(handle)

    def _start_worker(self, memory_fd: int) -> _Worker:
        parent_end, worker_end = Pipe()
        arguments = {
            "path": [str(Path(p).absolute()) for p in sys.path],
            "pipe_fd": worker_end.fileno(),
            "memory_fd": memory_fd,
            "image_size": self.image_size,
            "resize_ratio": self.resize_ratio,
        }
        with worker_end:
            process = subprocess.Popen(
                [sys.executable, "-c", _WORKER_PROGRAM, json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                pass_fds=(worker_end.fileno(), memory_fd),
                # Each worker uses one thread, because the workers together already use all cores.
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        return _Worker(process, parent_end)


def _create_shared_memory(size: int) -> int:
    """Return a file descriptor of shared memory without a name.

    The system frees the memory when the last process ends.
    """
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("lcrbnn", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.truncate(handle, size)
    return handle
