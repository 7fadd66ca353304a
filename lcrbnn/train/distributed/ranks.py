"""The processes of a distributed run, their collective calls, and the steps at which they synchronize."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lcrbnn.device import find_device
from lcrbnn.errors import ErrorOnOtherRank, InputError, RunFailed

T = TypeVar("T")

LAUNCHER_POLL_S = 1.0  # seconds between two checks whether torchrun is still running
SHUTDOWN_TIMEOUT_S = 60.0  # number of seconds for saving the last checkpoint after torchrun has ended
# Names of the environment variables that torchrun sets
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ProcessLost(RunFailed):
    """Another process of this run has ended or does not respond."""


@dataclass(frozen=True)
class Ranks:
    """All processes of one run, and the rank of this process.

    Without a launcher there is one, and collective calls do nothing.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # rank among the processes on this machine, which is also the index of the GPU of this process
    is_launched: bool = False
    host_group: Any = None  # process group for messages between CPUs; None for a single process

    @property
    def is_first(self) -> bool:
        """Return whether this process is rank 0. Only rank 0 writes files and prints."""
        return self.rank == 0

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Sum a tensor over all processes in place, and return it. On a GPU, this call does not wait for the result."""
        if self.is_launched:
            with explain_lost_connection():
                dist.all_reduce(x)
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Overwrite a tensor with the tensor of rank 0, and return it."""
        if self.is_launched:
            with explain_lost_connection():
                dist.broadcast(x, 0)
        return x

    def all_reduce_max(self, *numbers: int) -> list[int]:
        """Return the maximum over all processes for each number in a list."""
        if self.size == 1:
            return list(numbers)
        table = torch.tensor(numbers)
        with explain_lost_connection():
            dist.all_reduce(table, dist.ReduceOp.MAX, group=self.host_group)
        return table.tolist()

    def broadcast_object(self, value: T) -> T:
        """Return the object that rank 0 has passed."""
        if self.size == 1:
            return value
        box: list[Any] = [value if self.is_first else None]
        with explain_lost_connection():
            dist.broadcast_object_list(box, 0, group=self.host_group)
        return box[0]

    def all_gather_object(self, value: T) -> list[T]:
        """Return the objects of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        with explain_lost_connection():
            dist.all_gather_object(box, value, group=self.host_group)
        return box

    def run_on_rank0(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0. Return the function's result on all processes.

        If the function raises InputError or RunFailed, rank 0 raises this error and the other processes raise
        ErrorOnOtherRank. So the error is printed once.
        """
        if self.size == 1:
            return work()
        if not self.is_first:
            value, code = self.broadcast_object((None, 0))
            if code:
                raise ErrorOnOtherRank(code)
            return value  # type: ignore[return-value]  # without an error it is the value of rank 0
        try:
            value = work()
        except (InputError, RunFailed) as error:
            self.broadcast_object((None, 2 if isinstance(error, InputError) else 1))
            raise
        self.broadcast_object((value, 0))
        return value

    def run_on_all_ranks(self, work: Callable[[], T]) -> T:
        """Call a function on each process. Return the result of the own process.

        If the function raises InputError or RunFailed on any process, all processes raise an error. Rank 0 raises the
        error of the lowest rank that failed, and states that rank.
        """
        if self.size == 1:
            return work()
        value: T | None = None
        # Exit code and message of the error in this process; None if there was none
        own_error: tuple[int, str] | None = None
        try:
            value = work()
        except (InputError, RunFailed) as error:
            own_error = (2 if isinstance(error, InputError) else 1, str(error))
        errors = [(rank, *error) for rank, error in enumerate(self.all_gather_object(own_error)) if error is not None]
        if not errors:
            return value  # type: ignore[return-value]  # without an error it is set
        rank, code, message = errors[0]
        if not self.is_first:
            raise ErrorOnOtherRank(code)
        message = message if rank == 0 else f"rank {rank}: {message}"
        raise InputError(message) if code == 2 else RunFailed(message)

    def check_same(self, value: str, description: str) -> None:
        """Raise RunFailed on all processes unless all of them have the same value."""
        values = self.all_gather_object(value)
        different_ranks = [rank for rank, rank_value in enumerate(values) if rank_value != values[0]]
        if different_ranks:
            more = f" and {len(different_ranks) - 1} more" if len(different_ranks) > 1 else ""
            raise RunFailed(
                f"the processes differ in {description}: rank {different_ranks[0]}{more} from rank 0; all of them need "
                "the same code, data and libraries"
            )


SINGLE_PROCESS = Ranks()


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return all(os.environ.get(name) for name in LAUNCHER_VARIABLES)


@contextmanager
def join_process_group(device: str, timeout_s: float) -> Iterator[Ranks]:
    """Inside this context, the process is connected to the other processes of its run.

    A message that exceeds the timeout ends the run.
    """
    if not is_launched():
        yield SINGLE_PROCESS
        return
    rank, size, local_rank = (read_launcher_variable(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if rank >= size:
        raise InputError(f"RANK must be less than WORLD_SIZE, {size}; got {rank}")
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        threading.Thread(target=_stop_when_launcher_ends, args=(os.getppid(),), daemon=True).start()
    cuda = find_device(device).type == "cuda"
    if cuda:
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                f"this machine has {torch.cuda.device_count()} GPUs, and process {local_rank} (counted from 0) "
                "needs one of its own: start fewer with torchrun --nproc-per-node"
            )
        torch.cuda.set_device(local_rank)
    timeout = timedelta(seconds=timeout_s)
    with explain_lost_connection():
        store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        store = dist.PrefixStore(_agree_on_start_name(store, rank, size, timeout_s), store)
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        host_group = dist.new_group(backend="gloo", timeout=timeout) if cuda else dist.group.WORLD
    ranks = Ranks(rank, size, local_rank, True, host_group)
    yield ranks
    # Wait until all processes are done. After an error, this is skipped, because other processes may have ended.
    ranks.all_reduce_max(0)
    dist.destroy_process_group()


def _stop_when_launcher_ends(launcher_pid: int) -> None:
    """Wait until torchrun has ended. Then stop this process like SIGTERM does, with a checkpoint.

    Exit after the timeout.
    """
    while os.getppid() == launcher_pid:
        time.sleep(LAUNCHER_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SHUTDOWN_TIMEOUT_S)
    os._exit(128 + signal.SIGTERM)


@contextmanager
def explain_lost_connection() -> Iterator[None]:
    """Inside this context, a failed message to another process raises ProcessLost."""
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProcessLost(f"another process of this run has ended or cannot be reached ({reason[:160]})") from None


def read_launcher_variable(name: str, default: str = "0") -> int:
    """Return a number from an environment variable that torchrun has set."""
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise InputError(f"the environment variable {name} must be a number; got {text!r}")
    return int(text)


def _agree_on_start_name(store: Any, rank: int, size: int, timeout_s: float) -> str:
    """Return a name for this start of the run. It is the same on all processes and different from all earlier starts.

    After a restart, the launcher's store still contains the entries of the dead processes, and each machine counts its
    restarts separately. So rank 0 chooses a random name. Each other process asks for it with a random token. So it
    never reads an answer that was meant for a dead process.
    """
    if rank > 0:
        token = uuid.uuid4().hex
        store.set(f"lcrbnn/ask/{rank}", token)
        name = store.get(f"lcrbnn/answer/{token}").decode()
        store.set(f"lcrbnn/heard/{name}/{rank}", "")
        return name
    name = uuid.uuid4().hex
    missing_ranks, deadline = set(range(1, size)), time.monotonic() + timeout_s
    while missing_ranks:
        for other_rank in sorted(missing_ranks):
            if store.check([f"lcrbnn/heard/{name}/{other_rank}"]):
                missing_ranks.remove(other_rank)
            elif store.check([f"lcrbnn/ask/{other_rank}"]):
                # This may be the token of a dead process. The living process with this rank overwrites it later, and
                # gets the next answer.
                token = store.get(f"lcrbnn/ask/{other_rank}").decode()
                store.set(f"lcrbnn/answer/{token}", name)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(missing_ranks)} of {size} processes did not connect within {timeout_s:g} s")
        time.sleep(0.01)
    return name


SYNC_INTERVAL_S = 0.25  # minimum number of seconds between two synchronizations
# Minimum ratio (interval between synchronizations) / (duration of a synchronization), so that synchronizations take
# less than 5 % of the time.
MIN_INTERVAL_PER_SYNC = 20


class SyncInterval:
    """Choice of the steps after which all processes synchronize, to agree on signals and checkpoints.

    Each process proposes the number of steps until the next synchronization. Each synchronization exchanges the maximum
    of these numbers. So all processes use the same number.
    """

    def __init__(self, ranks: Ranks, *, every_step: bool) -> None:
        """Start with a synchronization after step 1.

        With `every_step`, or in a single process, synchronize after each step.
        """
        self.ranks, self.every_step = ranks, every_step or ranks.size == 1
        self.interval_steps = 1
        self._next_sync_step, self._last_sync_time = 0, time.monotonic()
        self._last_sync_step: int | None = None

    def is_due(self, steps_done: int) -> bool:
        """Return whether the processes synchronize after this number of steps."""
        return steps_done >= self._next_sync_step

    def synchronize(self, steps_done: int, *numbers: int) -> list[int]:
        """Return the maximum over all processes for each number, and choose the step of the next synchronization."""
        start = time.monotonic()
        *maxima, self.interval_steps = self.ranks.all_reduce_max(*numbers, self.interval_steps)
        self._next_sync_step, end = steps_done + self.interval_steps, time.monotonic()
        if not self.every_step and self._last_sync_step is not None and steps_done > self._last_sync_step:
            steps_per_s = (steps_done - self._last_sync_step) / max(start - self._last_sync_time, 1e-6)
            interval_s = max(SYNC_INTERVAL_S, MIN_INTERVAL_PER_SYNC * (end - start))
            # number of steps that this process proposes until the next synchronization
            self.interval_steps = math.ceil(steps_per_s * interval_s)
        self._last_sync_step, self._last_sync_time = steps_done, end
        return maxima
