"""`lcrbnn demo` trains a small binary network on digits, with and without LCR."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.errors import InputError, check_number

EXAMPLES = ("lcrbnn demo", "lcrbnn demo --num-seeds 1 --epochs 5 --out demo-short")
MAX_SEEDS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demo."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="FOLDER", help="folder for the runs and for the figure"
    )
    parser.add_argument(
        "--lcr-weight", type=float, default=8.0, metavar="LAMBDA", help="weight λ of the LCR loss in the runs with LCR"
    )
    parser.add_argument(
        "--num-seeds",
        type=int,
        default=3,
        metavar="N",
        help="number of seeds; each seed trains one run with LCR and one without LCR",
    )
    parser.add_argument("--epochs", type=int, default=15, metavar="N", help="number of passes over the training images")


def execute(args: argparse.Namespace) -> int:
    """Train the runs, print the table and export a network."""
    if args.lcr_weight == 0:
        raise InputError("--lcr-weight must be more than 0: the demo always trains runs without LCR too")
    check_number(args.lcr_weight, "--lcr-weight", low=0)
    check_number(args.num_seeds, "--num-seeds", low=1, high=MAX_SEEDS, integer=True)
    check_number(args.epochs, "--epochs", low=1, integer=True)
    from lcrbnn.errors import check_output_folder
    from lcrbnn.study.demo import run_demo

    check_output_folder(args.out, "the demo")
    print(run_demo(args.out, lcr_weight=args.lcr_weight, num_seeds=args.num_seeds, epochs=args.epochs))
    from lcrbnn.deploy.benchmark.export_check import export_and_check

    try:
        print(export_and_check(args.out / f"lambda-{args.lcr_weight:g}" / "seed-0", args.out / "digits.bnn"))
    except InputError as error:  # the demo is useful without the engine
        print(f"not exported: {error}")
    return 0
