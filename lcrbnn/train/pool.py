"""Processes that read images ahead of whoever needs them: batches in order, in memory that all of them share.

A process that dies or says nothing for `patience` seconds ends the work with an error. None outlives its parent, and
the shared memory has no name, so nothing is left behind however a run ends.
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

from lcrbnn.data.listing import Files, Listing
from lcrbnn.errors import Failed, InputError
from lcrbnn.train.reader import Chunk, Reply, fill

PATIENCE = 60.0  # seconds
START = 60.0  # that a new process has in any case: it loads its libraries first
SLOTS = 4  # batches in memory: some in work, one in use, one on its way to a device
CHUNK = 32  # images of a piece of work, at most
AHEAD = 4  # pieces that a process has at hand: few enough to fit into a pipe
GRACE = 2.0  # seconds that a process has to end by itself

_START = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a.pop('path'); "
    "from lcrbnn.train.reader import main; main(**a)"
)


class Request(NamedTuple):
    """One batch: its images; with a key, random squares by their places in an epoch."""

    members: Listing
    key: int | None = None
    places: Sequence[int] = ()


class Job:
    """A batch in work or done: `squares` is (n, side, side, 3), valid until `release`."""

    def __init__(self, slot: int, request: Request, squares: np.ndarray) -> None:
        """Nothing of it is done."""
        self.slot, self.request, self.squares = slot, request, squares
        self.missing: set[int] = set()  # chunks
        self.broken: dict[int, str] = {}  # by position in the batch
        self.dropped = False


class _Worker:
    def __init__(self, process: subprocess.Popen[bytes], pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.at_hand: dict[int, Chunk] = {}
        self.heard = time.monotonic()
        self.begun = False  # whether it has ever said anything


class Pool:
    """`run` gives batches in the order in which they are asked for. Without workers it reads them itself."""

    def __init__(
        self, side: int, margin: float, capacity: int, workers: int, *, patience: float = PATIENCE, slots: int = SLOTS
    ) -> None:
        """Nothing is started before the first batch is asked for; a batch has at most `capacity` images."""
        self.side, self.margin, self.capacity, self.workers = side, margin, capacity, workers
        self.patience, self.slots = patience, slots
        self.memory: np.ndarray | None = None  # (slots * capacity, side, side, 3), once started
        self.waited = 0.0  # seconds, so far, in which the next batch was not there yet
        self._crew: list[_Worker] = []
        self._free: list[int] = []
        self._backlog: deque[Chunk] = deque()
        self._owner: dict[int, tuple[Job, int]] = {}  # of each chunk: its job, and where in it the chunk begins
        self._number = 0
        self._queue: deque[Job] = deque()
        self._turn = 0
        self._files = Files()

    def run(self, requests: Iterable[Request]) -> Iterator[Job]:
        """The batches of these requests; those of an earlier call that are not done are dropped."""
        self._start()
        self._drop()
        self._turn += 1
        turn, todo = self._turn, iter(requests)
        self._submit(todo)
        return self._deliver(turn, todo)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [worker.process.pid for worker in self._crew]

    def release(self, job: Job) -> None:
        """Give a batch's memory back."""
        self._free.append(job.slot)

    def close(self) -> None:
        """End all processes: by themselves if they do, otherwise at once."""
        for worker in self._crew:
            worker.pipe.close()
        until = time.monotonic() + GRACE
        for worker in self._crew:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
        for worker in self._crew:
            try:
                worker.process.wait(GRACE)
            except subprocess.TimeoutExpired:  # stuck in the system, which ends it as soon as it can
                continue
        self._crew, self.memory = [], None
        self._files.close()

    def __enter__(self) -> Pool:
        """Use it in a with statement, and no process is left."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes."""
        self.close()

    # -- batches -----------------------------------------------------------------------------------------------------

    def _deliver(self, turn: int, todo: Iterator[Request]) -> Iterator[Job]:
        while True:
            if turn != self._turn:
                raise RuntimeError("another call of run has taken over these processes")
            self._submit(todo)
            if not self._queue:
                return
            job = self._queue[0]
            began = time.monotonic()
            while job.missing:
                self._listen(began)
            self.waited += time.monotonic() - began
            self._queue.popleft()
            self._submit(todo)
            yield job

    def _submit(self, todo: Iterator[Request]) -> None:
        self._hear(0)
        while self._free and (request := next(todo, None)) is not None:
            count = len(request.members)
            if count > self.capacity:
                raise ValueError(f"{count} images do not fit into the memory of {self.capacity}")
            slot = self._free.pop()
            assert self.memory is not None
            first = slot * self.capacity
            job = Job(slot, request, self.memory[first : first + count])
            self._queue.append(job)
            size = max(1, min(CHUNK, -(-count // max(1, 2 * self.workers))))
            for start in range(0, count, size):
                part = slice(start, min(start + size, count))
                some = request.members.take(np.arange(part.start, part.stop))
                chunk = Chunk(self._number, first + start, some, request.key, request.places[part])
                self._owner[self._number] = job, start
                job.missing.add(self._number)
                self._backlog.append(chunk)
                self._number += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._backlog and self._crew:
            worker = min(self._crew, key=lambda one: len(one.at_hand))
            if len(worker.at_hand) >= AHEAD:
                return
            chunk = self._backlog.popleft()
            if not worker.at_hand:
                worker.heard = time.monotonic()
            worker.at_hand[chunk.number] = chunk
            try:
                worker.pipe.send(chunk)
            except OSError:
                raise self._dead(worker) from None

    def _listen(self, began: float) -> None:
        """Wait for news; raise if a process has had none for too long."""
        if not self._crew:
            chunk = self._backlog.popleft()
            assert self.memory is not None
            self._take(Reply(chunk.number, fill(chunk, self.memory, self.margin, self._files)))
            return
        self._hear(min(1.0, self.patience / 4))
        self._hand_out()
        now = time.monotonic()
        for worker in self._crew:
            patience = self.patience if worker.begun else max(START, self.patience)
            if worker.at_hand and now - max(worker.heard, began) > patience:
                name = next(iter(worker.at_hand.values())).members[0].name
                raise Failed(
                    f"a process that reads images said nothing for {patience:g} seconds; it was given {name} "
                    "and those after it"
                )

    def _hear(self, seconds: float) -> None:
        pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in self._crew}
        for pipe in wait(list(pipes), seconds) if pipes else ():
            worker = pipes[pipe]
            try:
                reply: Reply = worker.pipe.recv()
            except (EOFError, OSError):
                raise self._dead(worker) from None
            worker.heard, worker.begun = time.monotonic(), True
            del worker.at_hand[reply.number]
            self._take(reply)

    def _take(self, reply: Reply) -> None:
        if reply.failure is not None:
            raise Failed(f"a process that reads images failed: {reply.failure}")
        job, start = self._owner.pop(reply.number)
        job.missing.discard(reply.number)
        job.broken |= {start + i: why for i, why in reply.broken.items()}
        if job.dropped and not job.missing:
            self.release(job)

    def _drop(self) -> None:
        """Give up what nobody will ask for; memory that is being written becomes free when it no longer is."""
        gone = {chunk.number for chunk in self._backlog}
        self._backlog.clear()
        for number in gone:
            job, _ = self._owner.pop(number)
            job.missing.discard(number)
        for job in self._queue:
            job.dropped = True
            if not job.missing:
                self.release(job)
        self._queue.clear()

    def _dead(self, worker: _Worker) -> Failed:
        """What to say of a process that is gone."""
        try:
            code = worker.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            code = None
        how = "closed its pipe" if code is None else f"ended with code {code}"
        how = f"was ended by signal {-code}" if code is not None and code < 0 else how
        why = "; perhaps memory ran out" if code == -9 else ""
        return Failed(f"a process that reads images {how}{why}")

    # -- processes ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self.memory is not None:
            return
        if find_spec("PIL") is None:
            raise InputError("reading images needs Pillow, which is not installed here")
        size = self.slots * self.capacity * self.side**2 * 3
        handle = _nameless(size)
        try:
            shared = mmap.mmap(handle, size)
            self.memory = np.frombuffer(shared, np.uint8).reshape(-1, self.side, self.side, 3)
            self._free = list(range(self.slots))
            for _ in range(self.workers):
                self._crew.append(self._spawn(handle))
        finally:
            os.close(handle)

    def _spawn(self, memory: int) -> _Worker:
        ours, theirs = Pipe()
        told = {
            "path": [str(Path(p).absolute()) for p in sys.path],
            "pipe": theirs.fileno(),
            "memory": memory,
            "side": self.side,
            "margin": self.margin,
        }
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        return _Worker(process, ours)


def _nameless(size: int) -> int:
    """Shared memory without a name: the system frees it with the last process that has it."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("lcrbnn", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.truncate(handle, size)
    return handle
