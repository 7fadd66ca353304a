"""Small runs on digits, and comparisons of two runs."""

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
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.loop import TrainingLoop
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train

ROOT = Path(__file__).parents[2]
SMALL = TrainSpec(epochs=2, batch_size=300)  # 4 steps per epoch, the last one with 100 images
SAVE_EVERY_STEP = RunOptions(device="cpu", checkpoint_interval_s=0.0)


def make_silent_progress(total: int, num_done: int) -> ProgressBar:
    return ProgressBar(total, io.StringIO(), num_done=num_done, print_tenths=False)


def train_small_run(
    path: Path, spec: TrainSpec = SMALL, options: RunOptions = SAVE_EVERY_STEP, *, resume: bool = False
) -> Path:
    return train(spec, path, options, resume=resume, progress=make_silent_progress)


def read_log_without_times(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log without times."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(path).read_log()]


def read_newest_arrays(path: Path) -> dict[str, np.ndarray]:
    newest = RunFolder(path).find_newest_checkpoint()
    assert newest is not None
    return read_checkpoint(newest).arrays


def assert_same_runs(first: Path, second: Path) -> None:
    assert read_log_without_times(first) == read_log_without_times(second)
    first_arrays, second_arrays = read_newest_arrays(first), read_newest_arrays(second)
    assert list(first_arrays) == list(second_arrays)
    assert [n for n in first_arrays if first_arrays[n].tobytes() != second_arrays[n].tobytes()] == []


class Crash(BaseException):
    """Ends a run like a kill: no code of the package handles it."""


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    counter = itertools.count(1)
    original = TrainingLoop._run_step

    def one(self: TrainingLoop) -> None:
        original(self)
        if next(counter) == steps:
            raise Crash

    monkeypatch.setattr(TrainingLoop, "_run_step", one)


def make_command(path: Path, *more: str) -> list[str]:
    run = [sys.executable, "-m", "lcrbnn", "train", "digits", "--run-folder", str(path), "--device", "cpu"]
    return [*run, "--batch-size", "300", "--checkpoint-interval", "0", *more]


def make_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
