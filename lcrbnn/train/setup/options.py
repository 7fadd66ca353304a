"""RunOptions has the settings of a run that do not change its outcome, such as device and folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lcrbnn.data.datasets import default_data_folder
from lcrbnn.data.loading.worker_pool import WORKER_TIMEOUT_S
from lcrbnn.device import find_device
from lcrbnn.errors import lookup
from lcrbnn.runs.old_names import RUN_OPTION_VALUES, reject_old_values
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, Ranks
from lcrbnn.train.setup.dataset import DataAccess
from lcrbnn.train.setup.load import DEFAULT_RUNS_FOLDER

# Functions of the device that return whether the steps are compiled, by step mode.
STEP_MODES: dict[str, Callable[[torch.device], bool]] = {
    "auto": lambda device: device.type == "cuda",
    "eager": lambda device: False,
    "compiled": lambda device: True,
}


@dataclass(frozen=True)
class RunOptions:
    """Options of the execution of a run, which do not change the outcome except for the last bits of sums."""

    device: str = "auto"  # name of the device: auto, cpu or cuda
    data_folder: Path = field(default_factory=default_data_folder)
    checkpoint_interval_s: float = 30.0  # seconds between two checkpoints; 0 = after every step
    tensorboard: bool = False  # whether event files for TensorBoard are written into the run folder
    step_mode: str = "auto"  # kind of training step, one of STEP_MODES
    workers: int = -1  # number of processes that read image files; -1 = one per CPU core, minus one
    cache_images: str = "auto"  # one of CACHE_MODES: whether decoded images are kept on the device
    worker_timeout_s: float = WORKER_TIMEOUT_S  # seconds without a response from a worker before the run is aborted
    ranks: Ranks = SINGLE_PROCESS  # the processes of a distributed run
    runs_folder: Path = DEFAULT_RUNS_FOLDER  # folder in which references study:PLAN/VARIANT are looked up
    compile_workers: int = 0  # number of processes that compile the steps of later runs of a study in advance

    def __post_init__(self) -> None:
        """Raise InputError with the new name if an option has an old value. Other checks run at its first use."""
        reject_old_values(self.__dict__, RUN_OPTION_VALUES)

    @property
    def is_compiled(self) -> bool:
        """Return whether the steps are compiled on this device."""
        return lookup(STEP_MODES, self.step_mode, "step mode")(find_device(self.device))

    @property
    def data_access(self) -> DataAccess:
        """Return the options for reading image files."""
        return DataAccess(self.data_folder, self.workers, self.cache_images, self.worker_timeout_s)
