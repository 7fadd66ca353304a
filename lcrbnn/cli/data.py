"""`lcrbnn data`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lcrbnn.data import DATASETS, data_folder
from lcrbnn.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which data set, and where to."""
    parser.add_argument("name", nargs="?", help="data set to fetch; without it they are listed")
    parser.add_argument("--data-folder", type=Path, default=data_folder(), help="where the data sets are")


def execute(args: argparse.Namespace) -> int:
    """List the data sets, or fetch one."""
    if args.name is None:
        for row in DATASETS.values():
            print(f"{row.name:<8} {row.summary}")
        return 0
    if args.name != "cifar10":
        raise InputError(f"no data set to fetch is called {args.name!r}; there is cifar10 (digits is embedded)")
    from lcrbnn.data.fetch import fetch_cifar10

    live = sys.stderr.isatty()

    def watch(done: int, total: int) -> None:
        if live:
            share = f" of {total / 1e6:.0f}" if total else ""
            end = "\n" if done == total else ""
            sys.stderr.write(f"\r\x1b[K{done / 1e6:.0f}{share} MB{end}")

    where = fetch_cifar10(args.data_folder, lambda text: print(text, file=sys.stderr), watch)
    print(f"{where}: 60,000 images")
    return 0
