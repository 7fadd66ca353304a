"""The processes of one run, as torchrun starts them: who this one is, and how all of them agree.

Numbers of a step travel by NCCL between GPUs and by gloo between CPUs. Everything else (what the first process decided,
whether a signal came) travels by gloo on the host, so that it is heard of while a GPU works, and also when it hangs.
"""

from __future__ import annotations

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

from lcrbnn.errors import Failed, InputError, Repeated
from lcrbnn.train.numerics import find_device

T = TypeVar("T")

LOOK, GRACE = 1.0, 60.0  # seconds between looks at the launcher, and to end after it is gone
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process


class Lost(Failed):
    """Another process of the run has ended or does not answer."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run; without a launcher it is alone, and all of this does nothing."""

    rank: int = 0
    size: int = 1
    local: int = 0  # among those on this machine: which GPU it has
    launched: bool = False
    control: Any = None  # the group on the host

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def add(self, x: Tensor) -> Tensor:
        """The sum over all processes, in the same tensor; not waited for on a GPU."""
        if self.launched:
            with lost():
                dist.all_reduce(x)
        return x

    def spread(self, x: Tensor) -> Tensor:
        """What the first process has, in the same tensor."""
        if self.launched:
            with lost():
                dist.broadcast(x, 0)
        return x

    def most(self, *numbers: int) -> list[int]:
        """The largest of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        table = torch.tensor(numbers)
        with lost():
            dist.all_reduce(table, dist.ReduceOp.MAX, group=self.control)
        return table.tolist()

    def of_first(self, value: T) -> T:
        """What the first process has."""
        if self.size == 1:
            return value
        box: list[Any] = [value if self.first else None]
        with lost():
            dist.broadcast_object_list(box, 0, group=self.control)
        return box[0]

    def of_all(self, value: T) -> list[T]:
        """What each process has, in their order."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        with lost():
            dist.all_gather_object(box, value, group=self.control)
        return box

    def told(self, work: Callable[[], T]) -> T:
        """Let the first process do it; all get what came of it, be it an error. Only the first one says that."""
        if self.size == 1:
            return work()
        if not self.first:
            value, code = self.of_first((None, 0))
            if code:
                raise Repeated(code)
            return value  # type: ignore[return-value]  # of_first gives what the first process sent
        try:
            value = work()
        except (InputError, Failed) as error:
            self.of_first((None, 2 if isinstance(error, InputError) else 1))
            raise
        self.of_first((value, 0))
        return value

    def everywhere(self, work: Callable[[], T]) -> T:
        """Let all do it, each for itself; if it goes wrong for some, all end, and the first process says where, why."""
        if self.size == 1:
            return work()
        value: T | None = None
        mine: tuple[int, str] | None = None
        try:
            value = work()
        except (InputError, Failed) as error:
            mine = (2 if isinstance(error, InputError) else 1, str(error))
        wrong = [(rank, *one) for rank, one in enumerate(self.of_all(mine)) if one is not None]
        if not wrong:
            return value  # type: ignore[return-value]  # it is set where nothing went wrong
        rank, code, said = wrong[0]
        if not self.first:
            raise Repeated(code)
        said = said if rank == 0 else f"rank {rank}: {said}"
        raise InputError(said) if code == 2 else Failed(said)

    def check_same(self, mark: str, what: str) -> None:
        """Raise on all processes unless each has the same mark."""
        marks = self.of_all(mark)
        odd = [rank for rank, one in enumerate(marks) if one != marks[0]]
        if odd:
            others = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            raise Failed(
                f"the processes differ in {what}: rank {odd[0]}{others} from rank 0; the same code, data and libraries "
                "are needed everywhere"
            )


ALONE = Ranks()


def launched() -> bool:
    """Whether a launcher started this process as one of a run."""
    return all(os.environ.get(name) for name in NEEDED)


@contextmanager
def joined(device: str, seconds: float) -> Iterator[Ranks]:
    """Inside, this process is one of those of the run; a message that takes longer than so many seconds ends it."""
    if not launched():
        yield ALONE
        return
    rank, size, local = (whole_number(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if rank >= size:
        raise InputError(f"RANK is {rank}, and of WORLD_SIZE {size} processes the last is {size - 1}")
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    cuda = find_device(device).type == "cuda"
    if cuda:
        if local >= torch.cuda.device_count():
            raise InputError(
                f"this machine has {torch.cuda.device_count()} GPUs, and process {local} (counted from 0) needs one of "
                "its own: start fewer, torchrun --nproc-per-node"
            )
        torch.cuda.set_device(local)
    limit = timedelta(seconds=seconds)
    with lost():
        store, _, _ = next(dist.rendezvous("env://", timeout=limit))
        store.set_timeout(limit)
        store = dist.PrefixStore(_start(store, rank, size, seconds), store)
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        control = dist.new_group(backend="gloo", timeout=limit) if cuda else dist.group.WORLD
    ranks = Ranks(rank, size, local, True, control)
    yield ranks
    ranks.most(0)  # all are done: nobody ends under another's feet
    dist.destroy_process_group()  # not after an error, when nobody may be left to say goodbye to


def _leave_with(launcher: int) -> None:
    """End as on a signal, with a checkpoint, when torchrun is gone; by force if that takes long."""
    while os.getppid() == launcher:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


@contextmanager
def lost() -> Iterator[None]:
    """Inside, a message that does not get through is a failure of the run, in a sentence."""
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Lost(f"another process of this run has ended or cannot be reached ({reason[:160]})") from None


def whole_number(name: str, otherwise: str = "0") -> int:
    """What the launcher says under this name."""
    text = os.environ.get(name, otherwise)
    if not text.isdecimal():
        raise InputError(f"the launcher says {name}={text!r}, which is no number")
    return int(text)


def _start(store: Any, rank: int, size: int, seconds: float) -> str:
    """A name for this start of the run that all its processes have and no earlier start had.

    After a restart the launcher's store still holds what the dead processes left there, and machines count restarts
    apart, so the first process makes a name up and gives it to each that asks with a word of its own.
    """
    if rank > 0:
        word = uuid.uuid4().hex
        store.set(f"lcrbnn/ask/{rank}", word)
        name = store.get(f"lcrbnn/answer/{word}").decode()
        store.set(f"lcrbnn/heard/{name}/{rank}", "")
        return name
    name = uuid.uuid4().hex
    silent, end = set(range(1, size)), time.monotonic() + seconds
    while silent:
        for one in sorted(silent):
            if store.check([f"lcrbnn/heard/{name}/{one}"]):
                silent.remove(one)
            elif store.check([f"lcrbnn/ask/{one}"]):
                word = store.get(f"lcrbnn/ask/{one}").decode()
                store.set(f"lcrbnn/answer/{word}", name)  # to a dead process's word, if the living one is not here yet
        if time.monotonic() > end:
            raise RuntimeError(f"{len(silent)} of {size} processes did not come within {seconds:g} s")
        time.sleep(0.01)
    return name
