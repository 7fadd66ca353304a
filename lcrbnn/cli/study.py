"""`lcrbnn study`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.train import SAVE_HELP, STEP_HELP, add_options, add_reading, parse_seeds
from lcrbnn.errors import number

if TYPE_CHECKING:
    from lcrbnn.study.plan import Part
    from lcrbnn.train.options import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A plan, and where its runs and records go."""
    parser.add_argument("plan", type=Path, help="a .toml file: recipe, seeds, control, settings, arms")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="train what is not finished, into this folder")
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="of the records; results/ and the name of the plan if not said"
    )
    add_running(parser)


def add_running(parser: argparse.ArgumentParser) -> None:
    """How the runs of a study are carried out."""
    parser.add_argument("--part", default="1/1", help="take every n-th arm: 1/4 to 4/4 in four processes")
    parser.add_argument("--seeds", metavar="LIST", help="take these seeds only, such as 0-2 or 0,5")
    parser.add_argument("--side-by-side", type=int, default=4, metavar="N", help="runs at a time")
    parser.add_argument("--step", default="auto", help=STEP_HELP)
    parser.add_argument(
        "--ahead", type=int, default=0, metavar="N", help="processes that compile the steps of later arms meanwhile"
    )
    parser.add_argument("--save-seconds", type=float, default=30.0, help=SAVE_HELP)
    parser.add_argument("--cache", default="auto", help="hold images from files on the device: yes, no, auto (by size)")
    add_options(parser)
    add_reading(parser)


def options_of(args: argparse.Namespace, runs: Path) -> Options:
    """How they are carried out, as the options say it; runs of other plans lie in `runs`, a folder a plan."""
    from lcrbnn.train.options import Options

    number(args.ahead, "--ahead", low=0, whole=True)
    reading = {"workers": args.workers, "cache": args.cache, "patience": args.patience}
    return Options(
        args.device, args.data_folder, args.save_seconds, step=args.step, **reading, runs=runs, ahead=args.ahead
    )


def part_of(args: argparse.Namespace) -> Part:
    """Which runs, as the options say it."""
    from lcrbnn.study.plan import Part

    return Part.of(args.part, None if args.seeds is None else parse_seeds(args.seeds))


def execute(args: argparse.Namespace) -> int:
    """Run the plan if a folder is given; print the table of what is there."""
    from lcrbnn.study.plan import read_plan, run_plan, table

    number(args.side_by_side, "--side-by-side", low=1, whole=True)
    part = part_of(args)
    plan = read_plan(args.plan)
    records = Path("results") / plan.name if args.records is None else args.records
    if args.run is not None:
        options = options_of(args, args.run.parent)
        run_plan(plan, args.run, records, options, args.side_by_side, part)
    print(table(plan, records))
    print(f"records: {records}; visible: the smallest true difference that so many pairs show four times out of five")
    return 0
