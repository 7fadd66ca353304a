"""Timing the trainer itself: a clock in the place of its progress bar, which sees every step and every epoch end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bench.kernels import Kernels
from lcrbnn.errors import Stopped
from lcrbnn.runs.progress import Progress
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.run import train_together

WARM = 2  # epochs before those that count; ratios are looked at in two of these, as often as early in training
NEVER = 1e9  # seconds: no checkpoint falls into the epochs that count


class Clock(Progress):
    """Notes the first step and the end of each epoch, and stops the runs when all that counts is seen."""

    def __init__(self, total: int, runs: int, epochs: int, kernels: Kernels | None = None) -> None:
        """Start; with no epochs the first step of each run is all that counts."""
        super().__init__(total, tenths=False)
        self.runs, self.epochs, self.kernels = runs, epochs, kernels
        self.last = 0 if epochs == 0 else runs * (WARM + epochs)  # end of an epoch
        self.first: float | None = None
        self.ends: list[float] = []

    def advance(self, note: Callable[[], str]) -> None:
        """A step of one of the runs."""
        super().advance(note)
        if self.first is None and self.done == self.runs:
            self.first = time.monotonic()
        if self.first is not None and len(self.ends) == self.last and (self.kernels is None or self.kernels.seen()):
            raise Stopped("all seen", 0)

    def tell(self, line: str) -> None:
        """An epoch of one of the runs: its line is written, the next one not begun."""
        super().tell(line)
        self.ends.append(time.monotonic())
        if self.kernels is None and len(self.ends) == self.last:
            raise Stopped("all seen", 0)


def measure(jobs: Mapping[Path, Spec], options: Options, epochs: int, profile: bool = False) -> dict[str, Any]:
    """Train side by side for so many epochs after the first few; none: until each run has made a step."""
    clocks: list[Clock] = []
    runs = len(jobs)
    kernels = Kernels(5 * runs) if profile and torch.cuda.is_available() else None

    def make(total: int, done: int) -> Clock:
        clocks.append(Clock(total, runs, epochs, kernels))
        return clocks[0]

    began = time.monotonic()
    try:
        train_together(jobs, options, progress=make)
    except Stopped as stopped:
        if stopped.number:
            raise
    ended = time.monotonic()
    clock = clocks[0]
    assert clock.first is not None
    figures: dict[str, Any] = {"first_step_s": clock.first - began}
    if epochs:
        spec = next(iter(jobs.values()))
        figures |= _speed(clock, clock.total // runs // spec.epochs, spec.batch)
    if kernels is None and epochs:
        figures["checkpoint_s"] = (ended - clock.ends[-1]) / runs  # saved by all runs when they stop
    return figures if kernels is None else {**figures, "kernels": kernels.figures}


def _speed(clock: Clock, steps: int, batch: int) -> dict[str, Any]:
    ends = clock.ends[clock.runs - 1 : clock.last : clock.runs]  # of the last run to get there, epoch by epoch
    each = [after - before for before, after in pairwise(ends[WARM - 1 :])]
    made = clock.runs * steps * len(each)
    return {
        "images_per_second": made * batch / sum(each),
        "ms_per_step": 1000 * sum(each) / made,
        "epoch_s": each,
        "steps_per_epoch": steps,
    }
