"""Command-line options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.data.datasets import default_data_folder
from lcrbnn.errors import InputError

MAX_SEEDS_PER_RANGE = 1000
DEFAULT_CHECKPOINT_INTERVAL_S = 30.0
DEFAULT_WORKER_TIMEOUT_S = 60.0


# A parser or a group of options. argparse has no public class for both types.
ArgumentContainer = argparse._ActionsContainer


def add_device_option(container: ArgumentContainer) -> None:
    """Add the option --device."""
    container.add_argument(
        "--device",
        default="auto",
        metavar="{auto,cpu,cuda}",
        help="device that computes (auto = GPU if available, otherwise CPU)",
    )


def add_data_folder_option(container: ArgumentContainer) -> None:
    """Add the option --data-folder."""
    container.add_argument(
        "--data-folder",
        type=Path,
        default=default_data_folder(),
        metavar="FOLDER",
        help="folder of the data sets; $LCRBNN_DATA sets the default",
    )


def add_frost_photos_option(container: ArgumentContainer) -> None:
    """Add --frost-photos."""
    container.add_argument(
        "--frost-photos",
        type=Path,
        metavar="FOLDER",
        help="folder of the five frost photos (default: frost in the data folder)",
    )


def add_worker_options(container: ArgumentContainer) -> None:
    """Add the options of the processes that read image files."""
    container.add_argument(
        "--workers",
        type=int,
        default=-1,
        metavar="N",
        help="number of processes that read image files (-1 = one per CPU core, minus one; 0 = read in the main "
        "process)",
    )
    container.add_argument(
        "--worker-timeout",
        type=float,
        default=DEFAULT_WORKER_TIMEOUT_S,
        metavar="SECONDS",
        help="seconds without a response from a data-loading worker before the run is aborted",
    )


def add_cache_option(container: ArgumentContainer) -> None:
    """Add the option --cache-images."""
    container.add_argument(
        "--cache-images",
        default="auto",
        metavar="{auto,yes,no}",
        help="keep decoded images in the memory of the device (auto = yes if the images fit)",
    )


def add_step_mode_option(container: ArgumentContainer) -> None:
    """Add the option --step-mode."""
    container.add_argument(
        "--step-mode",
        default="auto",
        metavar="MODE",
        help="eager, compiled (torch.compile and CUDA graph), or auto (compiled on a GPU, eager on a CPU)",
    )


def add_checkpoint_option(container: ArgumentContainer) -> None:
    """Add the option --checkpoint-interval."""
    container.add_argument(
        "--checkpoint-interval",
        type=float,
        default=DEFAULT_CHECKPOINT_INTERVAL_S,
        metavar="SECONDS",
        help="seconds between two checkpoints (0 = after every step)",
    )


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a text, such as [0, 1, 2, 5] for "0-2,5"."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        is_range = first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()
        # Limit the number of digits, because int() of a long text may be slow
        is_short = is_range and max(len(first), len(last)) <= 18
        if not is_short or not 0 <= int(last) - int(first) < MAX_SEEDS_PER_RANGE:
            raise InputError(f"--seeds must be a list such as 0-2 or 0,5; got {text[:40]!r}")
        seeds += range(int(first), int(last) + 1)
    if len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds contains a seed twice; got {text!r}")
    return seeds
