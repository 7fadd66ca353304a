"""Time the complete trainer.

A clock replaces the progress bar, because the trainer calls it at each step and epoch end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bench.training.step_kernel_times import KernelProfiler
from lcrbnn.errors import StopSignal
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train_parallel

NUM_WARM_UP_EPOCHS = 2  # number of warm-up epochs, which are not timed
# Seconds between two checkpoints; so many that no checkpoint is saved during the timed epochs
NO_CHECKPOINT_INTERVAL_S = 1e9


class EpochClock(ProgressBar):
    """Clock that records the time of the first step and of each epoch end.

    It stops the runs when all timed epochs are done.
    """

    def __init__(self, total: int, num_runs: int, num_epochs: int, profiler: KernelProfiler | None = None) -> None:
        """Start the clock. With 0 epochs, it stops each run after its first step."""
        super().__init__(total, print_tenths=False)
        self.num_runs, self.num_epochs, self.profiler = num_runs, num_epochs, profiler
        # number of epochs to time, summed over all runs
        self.num_epoch_ends = 0 if num_epochs == 0 else num_runs * (NUM_WARM_UP_EPOCHS + num_epochs)
        self.first_step_time: float | None = None
        self.epoch_end_times: list[float] = []

    def advance(self, make_note: Callable[[], str]) -> None:
        """Count a step of one of the runs."""
        super().advance(make_note)
        if self.first_step_time is None and self.num_done == self.num_runs:
            self.first_step_time = time.monotonic()
        if (
            self.first_step_time is not None
            and len(self.epoch_end_times) == self.num_epoch_ends
            and (self.profiler is None or self.profiler.record_step())
        ):
            raise StopSignal("all epochs timed", 0)

    def print_status(self, line: str) -> None:
        """Count an epoch of one of the runs. The trainer calls this after it has written the log line."""
        super().print_status(line)
        self.epoch_end_times.append(time.monotonic())
        if self.profiler is None and len(self.epoch_end_times) == self.num_epoch_ends:
            raise StopSignal("all epochs timed", 0)


def time_epochs(
    specs: Mapping[Path, TrainSpec], options: RunOptions, num_epochs: int, should_profile: bool = False
) -> dict[str, Any]:
    """Train the runs in parallel for `num_epochs` timed epochs after the warm-up.

    With 0, stop each run after its first step.
    """
    clocks: list[EpochClock] = []
    num_runs = len(specs)
    profiler = KernelProfiler(5 * num_runs) if should_profile and torch.cuda.is_available() else None

    def make_clock(total: int, steps_done: int) -> EpochClock:
        clocks.append(EpochClock(total, num_runs, num_epochs, profiler))
        return clocks[0]

    start_s = time.monotonic()
    try:
        train_parallel(specs, options, progress=make_clock)
    except StopSignal as signal:
        if signal.signal_number:
            raise
    end_s = time.monotonic()
    clock = clocks[0]
    assert clock.first_step_time is not None
    figures: dict[str, Any] = {"first_step_s": clock.first_step_time - start_s}
    if num_epochs:
        spec = next(iter(specs.values()))
        figures |= _compute_speed(clock, clock.total // num_runs // spec.epochs, spec.batch_size)
    if profiler is None and num_epochs:
        # each run saves a checkpoint when it stops
        figures["checkpoint_s"] = (end_s - clock.epoch_end_times[-1]) / num_runs
    return figures if profiler is None else {**figures, "kernels": profiler.figures}


def _compute_speed(clock: EpochClock, steps_per_epoch: int, batch_size: int) -> dict[str, Any]:
    end_times = clock.epoch_end_times[
        clock.num_runs - 1 : clock.num_epoch_ends : clock.num_runs
    ]  # seconds per epoch of the slowest run
    epoch_seconds = [after - before for before, after in pairwise(end_times[NUM_WARM_UP_EPOCHS - 1 :])]
    num_steps = clock.num_runs * steps_per_epoch * len(epoch_seconds)
    return {
        "images_per_second": num_steps * batch_size / sum(epoch_seconds),
        "ms_per_step": 1000 * sum(epoch_seconds) / num_steps,
        "epoch_s": epoch_seconds,
        "steps_per_epoch": steps_per_epoch,
    }
