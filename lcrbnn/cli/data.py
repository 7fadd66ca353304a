"""`lcrbnn data` lists the data sets, and downloads data sets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lcrbnn.cli.run_options import add_data_folder_option
from lcrbnn.data.datasets import DATASETS
from lcrbnn.errors import InputError, lookup
from lcrbnn.runs.terminal import redraw_line

EXAMPLES = ("lcrbnn data", "lcrbnn data cifar10")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the data set and the data folder."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="name of the data set to download (default: list all data sets)"
    )
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """List the data sets, or download one data set."""
    if args.name is None:
        width = max(map(len, DATASETS))
        for row in DATASETS.values():
            print(f"{row.name:<{width}} {row.summary}")
        print(f"{'frost':<{width}} five photos of frost, for the corruption frost of lcrbnn robustness")
        return 0
    if args.name in DATASETS and DATASETS[args.name].find_image_folder is not None:
        raise InputError(
            f"{args.name} cannot be downloaded: lcrbnn train reads it from --data-folder, as docs/data.md explains"
        )
    if args.name in DATASETS and args.name not in DOWNLOADS:
        raise InputError(f"{args.name} is part of the package and needs no download; there are {', '.join(DOWNLOADS)}")
    return lookup(DOWNLOADS, args.name, "data set to download")(args.data_folder)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr)


def _download_cifar10(folder: Path) -> int:
    from lcrbnn.data.download import download_cifar10

    is_terminal = sys.stderr.isatty()

    def show_progress(received_bytes: int, total_bytes: int) -> None:
        if is_terminal:
            total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
            end = "\n" if received_bytes == total_bytes else ""
            redraw_line(sys.stderr, f"{received_bytes / 1e6:.0f}{total} MB{end}")

    print(f"{download_cifar10(folder, _print_progress, show_progress)}: 60,000 images")
    return 0


def _download_frost(folder: Path) -> int:
    from lcrbnn.evaluation.corruptions.frost_photos import PHOTO_SHA256, download_frost

    print(f"{download_frost(folder, _print_progress)}: {len(PHOTO_SHA256)} photos")
    return 0


DOWNLOADS: dict[str, Callable[[Path], int]] = {
    "cifar10": _download_cifar10,
    "cifar10-small": _download_cifar10,
    "frost": _download_frost,
}
