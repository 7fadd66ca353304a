"""`lcrbnn report` writes a page about runs, from their records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lcrbnn.cli.model_arguments import reject_zoo_models
from lcrbnn.cli.run_options import add_data_folder_option, add_frost_photos_option
from lcrbnn.errors import lookup

EXAMPLES = (
    "lcrbnn report runs/digits -o report.html",
    "lcrbnn report none=runs/none lcr=runs/lcr --records records -o report.md",
)
REPORT_FORMATS = {".html": "one self-contained page", ".md": "Markdown, with its charts in a folder next to it"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the groups of runs, their records and the options of the report."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a run, of several seed-N runs or of their records, or NAME=FOLDER to name the group; each "
        "further group is compared with the first group, seed by seed (at most six groups, with the same data set)",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="path of the output file, which ends in .html or .md",
    )
    parser.add_argument(
        "--records",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="more records of these runs (robustness, attack, analyze, layers, cost), as files or folders; records in "
        "the run folders are always included",
    )
    parser.add_argument(
        "--title", metavar="TEXT", help="report title (default: derived from the trained model and data)"
    )
    parser.add_argument(
        "--sample-image",
        type=Path,
        metavar="FILE",
        help="path of the image that is shown under each corruption (default: a generated image)",
    )
    add_frost_photos_option(parser)
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    from lcrbnn.evaluation.corruptions.frost_photos import FROST_FOLDER, FrostPhotos
    from lcrbnn.report.build_report import build_report, check_report_path, list_warnings, write_report

    reject_zoo_models(args.runs, "report needs runs, because the zoo has no training logs")
    lookup(REPORT_FORMATS, args.out.suffix, "report format", "lcrbnn report --help")
    check_report_path(args.out)
    frost = args.data_folder / FROST_FOLDER if args.frost_photos is None else args.frost_photos
    if args.frost_photos is not None or frost.is_dir():
        FrostPhotos(frost)  # raises InputError before any work if a photo is missing or damaged
    report = build_report(
        args.runs,
        args.records,
        report_folder=args.out.parent,
        sample_image=args.sample_image,
        frost_folder=frost,
        title=args.title,
    )
    write_report(report, args.out)
    for warning in list_warnings(report):
        print(f"warning: {warning}", file=sys.stderr)
    print(args.out)
    return 0
