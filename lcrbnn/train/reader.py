"""A process that reads images: it takes lists of members from a pipe and puts their pixels into shared memory.

It ends when the pipe ends or its parent is gone, whatever it is doing then; signals are left to the parent.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from lcrbnn.data.listing import Broken, Files, Listing
from lcrbnn.errors import Failed
from lcrbnn.train.crops import evaluation_square, random_square

LOOK = 1.0  # seconds between two looks at the parent
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Chunk(NamedTuple):
    """A piece of work: these images, to be written from image `first` of the shared memory on.

    With a key, random squares by the places; without, the squares of evaluation.
    """

    number: int
    first: int
    members: Listing
    key: int | None
    places: Sequence[int]


class Reply(NamedTuple):
    """What became of a chunk: why images are broken, by their position in it; or what went wrong with the process."""

    number: int
    broken: dict[int, str]
    failure: str | None = None


def fill(chunk: Chunk, squares: np.ndarray, margin: float, files: Files) -> dict[int, str]:
    """Read the images of a chunk into (n, side, side, 3); why some could not be had. Their squares are black."""
    side, broken = squares.shape[1], {}
    for i in range(len(chunk.members)):
        square = squares[chunk.first + i]
        try:
            content = files.read(chunk.members[i])
            if chunk.key is None:
                square[...] = evaluation_square(content, side, margin)
            else:
                square[...] = random_square(content, side, chunk.key, chunk.places[i])
        except Broken as error:
            square[...] = 0
            broken[i] = str(error)
        except Exception as error:  # no image is to blame: memory that ran out, say
            why = f"{type(error).__name__} {error}".strip()
            raise Failed(f"{chunk.members[i].name} could not be read: {why[:400]}") from None
    return broken


def main(pipe: int, memory: int, side: int, margin: float) -> None:
    """Work until there is no more."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    _killed_with_parent()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    warnings.simplefilter("ignore")  # Pillow warns of what decode.py refuses or allows itself
    shared = mmap.mmap(memory, 0)
    squares = np.frombuffer(shared, np.uint8).reshape(-1, side, side, 3)
    files = Files()
    with Connection(pipe) as connection:
        while True:
            try:
                chunk = connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # nothing here is worth tidying: memory and files go with the process
            try:
                reply = Reply(chunk.number, fill(chunk, squares, margin, files))
            except Exception as error:
                reply = Reply(chunk.number, {}, str(error) if isinstance(error, Failed) else repr(error)[:500])
            try:
                connection.send(reply)
            except OSError:
                os._exit(0)


def _killed_with_parent() -> None:
    """Let Linux end this process with the thread that started it, even while it is stopped."""
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave_with(parent: int) -> None:
    """The same where there is no such call, or the parent was gone before it; a stopped process cannot do this."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)
