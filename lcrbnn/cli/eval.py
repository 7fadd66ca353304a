"""`lcrbnn eval`."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from lcrbnn.cli.train import add_options, add_reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs, and which images to read."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or of its seed-N folders")
    parser.add_argument(
        "--final", action="store_true", help="read the test split of a finished run; its record notes each reading"
    )
    add_options(parser)
    add_reading(parser)


def execute(args: argparse.Namespace) -> int:
    """Print a line a run, and the mean of several."""
    from lcrbnn.train.run import Options, evaluate, runs_in

    options = Options(args.device, args.data_folder, workers=args.workers, patience=args.patience)
    for folder in args.runs:
        found = []
        paths = runs_in(folder)
        for path in paths:
            read, readings = evaluate(path, options, final=args.final)
            found.append(read.top1)
            if readings > 1:
                print(f"{path}: its test images were read {readings - 1} times before", file=sys.stderr)
            split = f"test images (reading {readings})" if args.final else "validation images"
            five = "" if read.top5 is None else f", top-5 {read.top5:.2f} %"
            print(f"{path}: top-1 {read.top1:.2f} %{five}, loss {read.loss:.4f}, {read.images:,} {split}")
        if len(found) > 1:
            print(
                f"{folder}: mean {statistics.fmean(found):.2f} % ± {statistics.stdev(found):.2f} ({len(found)} seeds)"
            )
    return 0
