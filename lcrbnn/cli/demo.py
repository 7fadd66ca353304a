"""`lcrbnn demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.errors import InputError, number

MAX_SEEDS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the demo."""
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the runs and the figure")
    parser.add_argument("--weight", type=float, default=8.0, help="lambda of the run with retention")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the digits")


def execute(args: argparse.Namespace) -> int:
    """Check the options, train, print the table."""
    if args.weight == 0:
        raise InputError(
            "--weight is lambda of the run with retention and must be more than 0; the run without is made anyway"
        )
    number(args.weight, "--weight", low=0)
    number(args.seeds, "--seeds", low=1, high=MAX_SEEDS, whole=True)
    number(args.epochs, "--epochs", low=1, whole=True)
    from lcrbnn.outputs import check_output_folder
    from lcrbnn.study.demo import run_demo

    check_output_folder(args.out, "the demo")
    print(run_demo(args.out, weight=args.weight, seeds=args.seeds, epochs=args.epochs))
    from lcrbnn.peers.ship import ship

    try:
        print(ship(args.out / f"lambda-{args.weight:g}" / "seed-0", args.out / "digits.bnn"))
    except InputError as error:  # without the engine the rest is still worth having
        print(f"no engine: {error}")
    return 0
