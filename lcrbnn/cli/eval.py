"""`lcrbnn eval`."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli._given import ZOO
from lcrbnn.cli.train import add_options, add_reading
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record

if TYPE_CHECKING:
    from lcrbnn.train.evaluate import Accuracy
    from lcrbnn.train.options import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs, and which images to read."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help=f"folder of a run, or of its seed-N folders; or {ZOO}, on all test images",
    )
    parser.add_argument(
        "--final", action="store_true", help="read the test split of a finished run; its record notes each reading"
    )
    add_options(parser)
    add_reading(parser)


def execute(args: argparse.Namespace) -> int:
    """Print a line a run, and the mean of several."""
    from lcrbnn.runs.folder import runs_in
    from lcrbnn.train.options import Options
    from lcrbnn.train.reading import check_readable, evaluate
    from lcrbnn.zoo import named

    options = Options(args.device, args.data_folder, workers=args.workers, patience=args.patience)
    for folder in args.runs:
        for path in runs_in(folder) if named(folder) is None else []:
            check_readable(path, final=args.final)
    for folder in args.runs:
        if (name := named(folder)) is not None:
            _read_member(name, options)
            continue
        found = []
        paths = runs_in(folder)
        for path in paths:
            read, readings = evaluate(path, options, final=args.final)
            found.append(read.top1)
            if readings > 1:
                print(f"{path}: its test images were read {readings - 1} times before", file=sys.stderr)
            split = f"test images (reading {readings})" if args.final else "validation images"
            print(f"{path}: {_words(read)} {split}{_left_out(path) if args.final else ''}")
        if len(found) > 1:
            print(
                f"{folder}: mean {statistics.fmean(found):.2f} % ± {statistics.stdev(found):.2f} ({len(found)} seeds)"
            )
    return 0


def _left_out(path: Path) -> str:
    """What the last reading of the test images says of broken ones."""
    broken = read_record(RunFolder(path).record)["readings"][-1].get("broken")
    return f"; broken images left out: {len(broken):,}" if broken else ""


def _words(read: Accuracy) -> str:
    five = "" if read.top5 is None else f", top-5 {read.top5:.2f} %"
    return f"top-1 {read.top1:.2f} %{five}, loss {read.loss:.4f}, {read.images:,}"


def _read_member(name: str, options: Options) -> None:
    """Make the listed figure of a network again: on all test images, in float32."""
    from lcrbnn.zoo.file import read_member
    from lcrbnn.zoo.index import find
    from lcrbnn.zoo.measure import read_test

    member = find(name)
    read = read_test(read_member(member), options)
    print(f"zoo:{name}: {_words(read)} test images; listed with {member.top1:.2f} %")
