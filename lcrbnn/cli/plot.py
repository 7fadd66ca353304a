"""`lcrbnn plot`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lcrbnn.cli._given import refuse_members
from lcrbnn.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Records, and the file to draw into."""
    parser.add_argument(
        "records",
        nargs="+",
        type=Path,
        metavar="RECORD",
        help="record of a run, such as results/PLAN/ARM/seed-0.json, folder of a run, or folder of several seeds; "
        "those of an arm are drawn in one colour",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="an .svg, .png or .pdf file")


def execute(args: argparse.Namespace) -> int:
    """Draw, and say where it lies."""
    from lcrbnn.study.figure import check_figure
    from lcrbnn.study.trajectory import draw_trajectories, find_runs, read_arms
    from lcrbnn.train.finished import find_mismatch

    check_figure(args.out)
    refuse_members(args.records, "plot takes records, for the zoo keeps no log of training")
    _refuse_twice(args.records)
    draw_trajectories(read_arms(args.records), args.out)
    for path in (run for place in args.records for run in find_runs(place)):
        if warning := find_mismatch(path):
            print(f"warning: {warning}", file=sys.stderr)
    print(args.out)
    return 0


def _refuse_twice(given: list[Path]) -> None:
    """Raise if a run is named twice, by itself, its record or the folder of its seeds."""
    from lcrbnn.study.trajectory import find_runs

    seen: set[Path] = set()
    for path in (one for place in given for one in find_runs(place)):
        whole = path.resolve()
        run = whole.parent if whole.name == "record.json" else whole
        if run in seen:
            raise InputError(f"{path} is given twice: name each run or record once")
        seen.add(run)
