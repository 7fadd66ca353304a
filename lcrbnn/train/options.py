"""How a run is carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lcrbnn.data import data_folder
from lcrbnn.errors import choose
from lcrbnn.train.build import RUNS
from lcrbnn.train.numerics import find_device
from lcrbnn.train.pool import PATIENCE
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.sources import Access

STEPS: dict[str, Callable[[torch.device], bool]] = {
    "auto": lambda device: device.type == "cuda",
    "eager": lambda device: False,
    "fast": lambda device: True,
}


@dataclass(frozen=True)
class Options:
    """How a run is carried out: nothing here decides its outcome."""

    device: str = "auto"
    data_folder: Path = field(default_factory=data_folder)
    save_seconds: float = 30.0  # between two checkpoints; 0 saves after each step
    tensorboard: bool = False
    step: str = "auto"  # STEPS
    workers: int = -1  # processes that read images from files; -1: one a core but one
    cache: str = "auto"  # whether such images are held on the device: sources.CACHES
    patience: float = PATIENCE  # seconds that such a process may say nothing
    ranks: Ranks = ALONE  # the processes that share the run
    runs: Path = RUNS  # of studies, where a spec names one of them
    ahead: int = 0  # processes that compile the steps of a study's later runs meanwhile

    @property
    def fast(self) -> bool:
        """Whether steps are compiled."""
        return choose(STEPS, self.step, "kind of step")(find_device(self.device))

    @property
    def files(self) -> Access:
        """How images are read from files."""
        return Access(self.data_folder, self.workers, self.cache, self.patience)
