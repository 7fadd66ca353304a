"""`lcrbnn data`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lcrbnn.data import DATASETS, data_folder
from lcrbnn.errors import InputError, choose
from lcrbnn.runs.terminal import redraw_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which data set, and where to."""
    parser.add_argument("name", nargs="?", help="data set to fetch; without it they are listed")
    parser.add_argument("--data-folder", type=Path, default=data_folder(), help="where the data sets are")


def execute(args: argparse.Namespace) -> int:
    """List the data sets, or fetch one."""
    if args.name is None:
        width = max(map(len, DATASETS))
        for row in DATASETS.values():
            print(f"{row.name:<{width}} {row.summary}")
        print(f"{'frost':<{width}} five photos of frost, for one of the corruptions of lcrbnn robustness")
        return 0
    if args.name in DATASETS and DATASETS[args.name].tree is not None:
        raise InputError(
            f"{args.name} cannot be fetched: lcrbnn train takes it from --data-folder, as docs/data.md says"
        )
    if args.name in DATASETS and args.name not in FETCH:
        raise InputError(f"{args.name} is embedded: there is nothing to fetch; there are {', '.join(FETCH)}")
    return choose(FETCH, args.name, "data set to fetch")(args.data_folder)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _cifar10(folder: Path) -> int:
    from lcrbnn.data.fetch import fetch_cifar10

    live = sys.stderr.isatty()

    def watch(done: int, total: int) -> None:
        if live:
            share = f" of {total / 1e6:.0f}" if total else ""
            end = "\n" if done == total else ""
            redraw_line(sys.stderr, f"{done / 1e6:.0f}{share} MB{end}")

    print(f"{fetch_cifar10(folder, _say, watch)}: 60,000 images")
    return 0


def _frost(folder: Path) -> int:
    from lcrbnn.data.frost import PHOTOS, fetch_frost

    print(f"{fetch_frost(folder, _say)}: {len(PHOTOS)} photos")
    return 0


FETCH: dict[str, Callable[[Path], int]] = {"cifar10": _cifar10, "cifar10-small": _cifar10, "frost": _frost}
