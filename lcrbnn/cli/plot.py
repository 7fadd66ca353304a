"""`lcrbnn plot` draws accuracies and σ ratios during training."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lcrbnn.cli.model_arguments import reject_zoo_models
from lcrbnn.errors import InputError

EXAMPLES = ("lcrbnn plot runs/digits -o curves.svg", "lcrbnn plot runs/none runs/lcr -o curves.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the records and the output file."""
    parser.add_argument(
        "records",
        nargs="+",
        type=Path,
        metavar="RECORD",
        help="record of a run, such as results/PLAN/VARIANT/seed-0.json, folder of a run, or folder of several seeds; "
        "all seeds of a variant are drawn in the same color",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="output file: .svg, .png or .pdf")


def execute(args: argparse.Namespace) -> int:
    """Draw the curves and print the path of the figure."""
    from lcrbnn.report.figures.figure import check_figure_path
    from lcrbnn.report.figures.training_curves import draw_training_curves, find_curve_files, read_curve_groups
    from lcrbnn.train.setup.validate_checkpoint import explain_record_mismatch

    check_figure_path(args.out)
    reject_zoo_models(args.records, "plot needs records of training, and the zoo has none")
    _reject_duplicates(args.records)
    draw_training_curves(read_curve_groups(args.records), args.out)
    for path in (run for source in args.records for run in find_curve_files(source)):
        if warning := explain_record_mismatch(path):
            print(f"warning: {warning}", file=sys.stderr)
    print(args.out)
    return 0


def _reject_duplicates(sources: list[Path]) -> None:
    """Raise InputError if two arguments name the same run, by its folder, its record or the folder of its seeds."""
    from lcrbnn.report.figures.training_curves import find_curve_files

    drawn_runs: set[Path] = set()
    for path in (file for source in sources for file in find_curve_files(source)):
        resolved = path.resolve()
        run = resolved.parent if resolved.name == "record.json" else resolved
        if run in drawn_runs:
            raise InputError(f"{path} is given twice; give each run or record once")
        drawn_runs.add(run)
