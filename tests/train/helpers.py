"""Small runs on digits, and how to compare two of them."""

from __future__ import annotations

import io
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.runs.checkpoint import read_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress
from lcrbnn.train import Spec
from lcrbnn.train.loop import Loop
from lcrbnn.train.options import Options
from lcrbnn.train.run import train

ROOT = Path(__file__).parents[2]
SMALL = Spec(epochs=2, batch=300)  # 4 steps an epoch, the last of 100 images
OFTEN = Options(device="cpu", save_seconds=0.0)


def quiet(total: int, done: int) -> Progress:
    return Progress(total, io.StringIO(), done=done, tenths=False)


def small_run(path: Path, spec: Spec = SMALL, options: Options = OFTEN, *, resume: bool = False) -> Path:
    return train(spec, path, options, resume=resume, progress=quiet)


def log(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, times aside."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(path).read_log()]


def arrays(path: Path) -> dict[str, np.ndarray]:
    newest = RunFolder(path).newest()
    assert newest is not None
    return read_checkpoint(newest).arrays


def assert_same(one: Path, other: Path) -> None:
    assert log(one) == log(other)
    mine, theirs = arrays(one), arrays(other)
    assert list(mine) == list(theirs)
    assert [n for n in mine if mine[n].tobytes() != theirs[n].tobytes()] == []


class Crash(BaseException):
    """Ends a run as a kill does: nothing of ours handles it."""


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    counter = itertools.count(1)
    whole = Loop._one

    def one(self: Loop) -> None:
        whole(self)
        if next(counter) == steps:
            raise Crash

    monkeypatch.setattr(Loop, "_one", one)


def command(path: Path, *more: str) -> list[str]:
    run = [sys.executable, "-m", "lcrbnn", "train", "digits", "--run", str(path), "--device", "cpu"]
    return [*run, "--batch", "300", "--save-seconds", "0", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
