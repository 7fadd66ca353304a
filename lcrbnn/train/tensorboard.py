"""Write the curves of a run as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError

CURVES = (
    "train_loss",
    "lcr_loss",
    "train_top1",
    "valid_top1",
    "valid_loss",
    "lr",
    "lcr_weight",
    "lcr_gradient_ratio",
    "valid_top5",
    "data_time_fraction",
)  # columns of the log with one number per epoch; each sigma ratio also gets its own curve


def check_tensorboard_installed() -> None:
    """Raise InputError if the package tensorboard is not installed. PyTorch needs it to write event files."""
    try:
        import torch.utils.tensorboard  # noqa: F401  # imported for the check only
    except ModuleNotFoundError:
        raise InputError("--tensorboard needs the package tensorboard: pip install 'lcrbnn[tensorboard]'") from None


class TensorboardWriter:
    """Writer of the curves of a run, with one point per epoch.

    At each start, all events are written again from the log. So a resumed run has no duplicate points.
    """

    def __init__(self, folder: Path, lines: list[dict[str, Any]]) -> None:
        """Replace all event files in the folder by a new one, which contains the epochs in `lines`."""
        from torch.utils.tensorboard import SummaryWriter

        try:
            folder.mkdir(exist_ok=True)
            for old_file in folder.glob("events.out.tfevents.*"):
                old_file.unlink()
            self._writer = SummaryWriter(str(folder))
            for line in lines:
                self.add_log_line(line)
        except OSError as error:
            raise InputError(f"TensorBoard's file cannot be written to {folder}: {error.strerror}") from None

    def add_log_line(self, line: dict[str, Any]) -> None:
        """Append all numbers of one epoch and write them to the file."""
        values = {name: line[name] for name in CURVES if line.get(name) is not None}
        values |= {f"sigma_ratio/{i:02d}": ratio for i, ratio in enumerate(line["sigma_ratios"] or [])}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, line["epoch"])
        self._writer.flush()
