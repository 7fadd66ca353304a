"""Copy batches from the workers' shared memory to a device. Meanwhile, a GPU computes the previous step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.loading.worker_pool import BatchJob, BatchRequest, WorkerPool
from lcrbnn.errors import InputError

MAX_STEPS_AHEAD = 2  # maximum number of steps that are queued on a GPU when the next batch is copied


class DevicePrefetcher:
    """Yields the batches of a worker pool as uint8 tensors (n, 3, h, w) on a device.

    `waiting_time_s` is the time in seconds for which the device was idle because a batch was not ready. On a GPU, CUDA
    events measure it, from the end of the queued work to the arrival of the batch.
    """

    def __init__(self, pool: WorkerPool, device: torch.device) -> None:
        """Store the pool and the device. The workers start with the first batch."""
        self.pool, self.device, self.waiting_time_s = pool, device, 0.0
        self._copy_stream: Any = None  # CUDA stream that copies batches to the device
        # address of the shared memory if it is page-locked for the GPU, else None
        self._pinned_address: int | None = None
        self._step_events: deque[Any] = deque()  # one CUDA event per queued step; it is recorded after the step
        # Pairs of events, one before and one after a wait for a batch. The GPU has not reached them yet. Reading the
        # time between them now would stall the GPU.
        self._pending_waits: deque[tuple[Any, Any]] = deque()
        # batches whose copies may still be running, so their slots of the pool are still in use
        self._copies_in_flight: deque[tuple[Any, BatchJob]] = deque()

    def load_batches(self, requests: Iterable[BatchRequest]) -> Iterator[Tensor]:
        """Return the batches in the order of the requests. Raise InputError at a broken image."""
        # The workers start to read here, before the caller uses the first batch.
        jobs = self.pool.read_batches(requests)
        return self._transfer_batches(jobs)

    def close(self) -> None:
        """Stop the workers and free their memory."""
        self._wait_for_copies()
        if self._pinned_address is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned_address)
            self._pinned_address = None
        self.pool.close()

    def __enter__(self) -> DevicePrefetcher:
        """Return the prefetcher. The with statement closes the prefetcher at the end of its block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers and free their memory."""
        self.close()

    def _transfer_batches(self, jobs: Iterator[BatchJob]) -> Iterator[Tensor]:
        copy_to_device = self._copy_to_gpu if self.device.type == "cuda" else self._copy_on_cpu
        try:
            while True:
                previous_step = self._limit_steps_ahead()
                start_time = time.monotonic()
                job = next(jobs, None)
                self._count_waiting_time(previous_step, time.monotonic() - start_time)
                if job is None:
                    return
                if job.broken_images:
                    self.pool.release(job)
                    raise InputError(describe_broken_image(job))
                yield copy_to_device(job)
        finally:
            self._wait_for_copies()

    def _limit_steps_ahead(self) -> Any:
        """Wait until the GPU queue has at most MAX_STEPS_AHEAD steps. Return the event after the last queued step."""
        if self.device.type != "cuda":
            return None
        event = self._record_event()
        self._step_events.append(event)
        if len(self._step_events) > MAX_STEPS_AHEAD:
            self._step_events.popleft().synchronize()
        return event

    def _record_event(self) -> Any:
        """Return a new CUDA event. The GPU records its time after all work that is queued now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _count_waiting_time(self, previous_step: Any, seconds: float) -> None:
        """Add the idle time of the device to the total. Only events that the GPU has already reached are counted."""
        if previous_step is None:
            self.waiting_time_s += seconds
            return
        self._pending_waits.append((previous_step, self._record_event()))
        while self._pending_waits and self._pending_waits[0][1].query():
            self._add_oldest_wait()

    def _add_oldest_wait(self) -> None:
        before, after = self._pending_waits.popleft()
        self.waiting_time_s += before.elapsed_time(after) / 1000

    def _copy_on_cpu(self, job: BatchJob) -> Tensor:
        images = torch.from_numpy(job.images).permute(0, 3, 1, 2).contiguous()
        self.pool.release(job)
        return images

    def _copy_to_gpu(self, job: BatchJob) -> Tensor:
        # The copy runs in its own stream, in parallel with the computation. The compute stream waits for the copy.
        # record_stream prevents the memory of the batch from being reused before the computation has used it.
        compute_stream = torch.cuda.current_stream()
        if self._copy_stream is None:
            self._copy_stream, self._pinned_address = torch.cuda.Stream(), _pin_memory(self.pool.shared_images)
        host_images = torch.from_numpy(job.images)
        if self._pinned_address is None:
            host_images = host_images.pin_memory()
        copy_event = torch.cuda.Event()
        with torch.cuda.stream(self._copy_stream):
            device_images = torch.empty(host_images.shape, dtype=torch.uint8, device=self.device)
            device_images.copy_(host_images, non_blocking=True)
            copy_event.record()
        compute_stream.wait_event(copy_event)
        device_images.record_stream(compute_stream)
        self._copies_in_flight.append((copy_event, job))
        # Release the pool slots whose copies have finished. If MAX_STEPS_AHEAD slots are still in use, wait for the
        # oldest copy.
        while self._copies_in_flight:
            event, copied_job = self._copies_in_flight[0]
            if len(self._copies_in_flight) < MAX_STEPS_AHEAD and not event.query():
                break
            self._copies_in_flight.popleft()
            event.synchronize()
            self.pool.release(copied_job)
        return device_images.permute(0, 3, 1, 2).contiguous()

    def _wait_for_copies(self) -> None:
        """Wait until all copies have ended, then add the remaining idle time."""
        while self._copies_in_flight:
            event, job = self._copies_in_flight.popleft()
            event.synchronize()
            self.pool.release(job)
        while self._pending_waits:
            self._pending_waits[0][1].synchronize()
            self._add_oldest_wait()
        self._step_events.clear()


def describe_broken_image(job: BatchJob) -> str:
    """Return the error message for the first broken image of a batch."""
    position, reason = min(job.broken_images.items())
    name = job.request.image_index[position].name
    return f"{name} is broken: {reason}; --skip-broken-images leaves such images out and lists them"


def _pin_memory(memory: np.ndarray | None) -> int | None:
    """Page-lock memory so that a GPU can copy from it asynchronously.

    Return its address, or None if page-locking fails.
    """
    assert memory is not None
    address = memory.ctypes.data
    return address if int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0)) == 0 else None
