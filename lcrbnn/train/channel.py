"""From the memory of reading processes to a device: copied while the step before is computed, never far ahead of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.train.pool import Job, Pool, Request

AHEAD = 2  # steps that a device may have in hand before the next batch is sent


class Channel:
    """The batches of a pool as tensors (n, 3, side, side), uint8, on a device.

    `waited` counts the seconds in which a batch was not there yet and the device had nothing else to do: on a GPU by
    its own clock, from the end of what was ordered before to the moment when the batch was there.
    """

    def __init__(self, pool: Pool, device: torch.device) -> None:
        """Nothing is started."""
        self.pool, self.device, self.waited = pool, device, 0.0
        self._copies: Any = None  # the stream on which batches go to a GPU
        self._pinned: int | None = None  # address of memory that a GPU may read while the CPU goes on
        self._ordered: deque[Any] = deque()  # an event for each step that the device has in hand
        self._gaps: deque[tuple[Any, Any]] = deque()  # before and after a batch was waited for; not reached yet
        self._sent: deque[tuple[Any, Job]] = deque()  # batches on their way, whose memory is still needed

    def batches(self, requests: Iterable[Request]) -> Iterator[Tensor]:
        """Batches in the order of the requests; an image that is broken ends it."""
        jobs = self.pool.run(requests)  # begins to read before the first batch is asked for
        return self._carry(jobs)

    def close(self) -> None:
        """End the processes, and let go of their memory."""
        self._settle()
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = None
        self.pool.close()

    def __enter__(self) -> Channel:
        """Use it in a with statement, and no process is left."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _carry(self, jobs: Iterator[Job]) -> Iterator[Tensor]:
        send = self._to_gpu if self.device.type == "cuda" else self._to_cpu
        try:
            while True:
                last = self._mark()
                began = time.monotonic()
                job = next(jobs, None)
                self._count(last, time.monotonic() - began)
                if job is None:
                    return
                if job.broken:
                    self.pool.release(job)
                    raise InputError(refusal(job))
                yield send(job)
        finally:
            self._settle()

    def _mark(self) -> Any:
        """After what is ordered so far, on a GPU; wait for the device if it has too much in hand."""
        if self.device.type != "cuda":
            return None
        event = self._now()
        self._ordered.append(event)
        if len(self._ordered) > AHEAD:
            self._ordered.popleft().synchronize()
        return event

    def _now(self) -> Any:
        """An event behind all that is ordered so far, with the time at which the device reaches it."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _count(self, last: Any, seconds: float) -> None:
        """Add what the device stood still, as far as it is known by now."""
        if last is None:
            self.waited += seconds
            return
        self._gaps.append((last, self._now()))
        while self._gaps and self._gaps[0][1].query():
            self._close_gap()

    def _close_gap(self) -> None:
        before, after = self._gaps.popleft()
        self.waited += before.elapsed_time(after) / 1000

    def _to_cpu(self, job: Job) -> Tensor:
        made = torch.from_numpy(job.squares).permute(0, 3, 1, 2).contiguous()
        self.pool.release(job)
        return made

    def _to_gpu(self, job: Job) -> Tensor:
        here = torch.cuda.current_stream()
        if self._copies is None:
            self._copies, self._pinned = torch.cuda.Stream(), _pin(self.pool.memory)
        host = torch.from_numpy(job.squares)
        if self._pinned is None:
            host = host.pin_memory()
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._copies):
            there = torch.empty(host.shape, dtype=torch.uint8, device=self.device)
            there.copy_(host, non_blocking=True)
            copied.record()
        here.wait_event(copied)
        there.record_stream(here)
        self._sent.append((copied, job))
        while len(self._sent) >= AHEAD or (self._sent and self._sent[0][0].query()):
            event, sent = self._sent.popleft()
            event.synchronize()
            self.pool.release(sent)
        return there.permute(0, 3, 1, 2).contiguous()

    def _settle(self) -> None:
        """Wait until nothing is on its way."""
        while self._sent:
            event, job = self._sent.popleft()
            event.synchronize()
            self.pool.release(job)
        while self._gaps:
            self._gaps[0][1].synchronize()
            self._close_gap()
        self._ordered.clear()


def refusal(job: Job) -> str:
    """A sentence about the first broken image of a batch."""
    at, why = min(job.broken.items())
    return f"{job.request.members[at].name} is broken: {why}; --skip-broken leaves such images out, and lists them"


def _pin(memory: np.ndarray | None) -> int | None:
    """Let a GPU read this memory by itself; None where the driver does not want to."""
    assert memory is not None
    address = memory.ctypes.data
    return address if int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0)) == 0 else None
