"""RunContext has the fixed parts of a training run, and RunState has the progress of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.distributed.ranks import Ranks
from lcrbnn.train.setup.build import TrainingParts
from lcrbnn.train.setup.dataset import RunSplits
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.validation import LcrMeasurement


class TrainingStep(Protocol):
    """Interface of a step that runs the batches of an epoch in order, implemented by EagerStep and CompiledStep."""

    record_name: str  # name of the kind of step; checkpoints and records contain it
    steps_per_epoch: int
    sums: torch.Tensor  # values of SUM_NAMES, added up over the epoch
    is_captured: bool  # whether a step is captured as a CUDA graph

    def begin_epoch(self, epoch: int, first_step: int, full_lcr_weight: float) -> None:
        """Prepare the steps of an epoch from `first_step` on. `full_lcr_weight` is lambda at the end of its warm-up."""

    def run_step(self) -> None:
        """Run the next step of the epoch."""

    def check_finite(self) -> None:
        """Wait until all steps have run. If one of them had a non-finite value, raise NonFiniteError."""

    def measure_lcr(self) -> LcrMeasurement | None:
        """Return an LCR measurement with the compiled step.

        Return None if validation.measure_lcr has to measure instead.
        """


@dataclass(frozen=True, eq=False)
class RunContext:
    """The parts of a training run that do not change while it trains."""

    spec: TrainSpec
    options: RunOptions
    folder: RunFolder
    parts: TrainingParts
    splits: RunSplits
    step: TrainingStep
    label: str = ""  # label that is printed before each line about this run if several runs train in parallel

    @property
    def ranks(self) -> Ranks:
        """Return the processes that train this run together."""
        return self.options.ranks

    @property
    def device(self) -> torch.device:
        """Return the device on which this run trains."""
        return self.splits.train.labels.device

    @property
    def line_prefix(self) -> str:
        """Return the label and two spaces, or an empty string without a label."""
        return f"{self.label}  " if self.label else ""

    def describe_step(self) -> str:
        """Return a text about the kind of step and the hardware that train this run.

        Checkpoints and records contain this text. Apart from the settings, the last bits of a result depend only on
        this.
        """
        if self.device.type == "cpu":
            processor = f"{torch.get_num_threads()} threads"
        else:
            processor = torch.cuda.get_device_name(self.device)
        processes = f"{self.ranks.size} x " if self.ranks.size > 1 else ""
        return f"{self.step.record_name} on {processes}{processor}"


@dataclass
class RunState:
    """The progress of a run, with the next step to train and other values that a checkpoint stores besides arrays.

    At step 0, the epoch has not begun yet. After the last step, the epoch has not been validated and logged yet.
    """

    full_lcr_weight: float  # lambda, the weight of the LCR loss, at the end of its warm-up
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0  # seconds that were spent on the current epoch before the run was interrupted
    saved_position: tuple[int, int] | None = None  # epoch and step of the newest checkpoint; None if there is none

    def count_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps since the beginning of the run."""
        return self.epoch * steps_per_epoch + self.step
