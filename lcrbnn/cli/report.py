"""`lcrbnn report`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lcrbnn.cli._given import refuse_members
from lcrbnn.data import data_folder
from lcrbnn.errors import choose

KINDS = {".html": "one page with everything in it", ".md": "Markdown, with its charts in a folder beside it"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs in groups, records about them, and the file to write."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a run, of its seed-N folders or of their records, or NAME=FOLDER; several groups, six at most "
        "and of the same data, are compared with the first, seed by seed",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="an .html or .md file")
    parser.add_argument(
        "--records",
        nargs="+",
        type=Path,
        default=[],
        metavar="PLACE",
        help="files or folders of records of these runs (robustness, attack, analyze, layers, cost); those in the "
        "runs' own folders are found without",
    )
    parser.add_argument("--title", help="of the report; what was trained if not said")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="to be shown under each corruption; one is drawn if not said"
    )
    parser.add_argument(
        "--frost", type=Path, metavar="FOLDER", help="of the photos; frost/ in the data folder if not said"
    )
    parser.add_argument("--data-folder", type=Path, default=data_folder(), help="where the data sets are")


def execute(args: argparse.Namespace) -> int:
    """Gather, write, say where it lies."""
    from lcrbnn.corrupt.photos import Photos
    from lcrbnn.data.frost import FOLDER
    from lcrbnn.report.content import find_warnings, gather
    from lcrbnn.report.write import check_output, write

    refuse_members(args.runs, "report takes runs, for the zoo keeps no log of training")
    choose(KINDS, args.out.suffix, "kind of report")
    check_output(args.out)
    frost = args.data_folder / FOLDER if args.frost is None else args.frost
    if args.frost is not None or frost.is_dir():
        Photos(frost)  # a photo that is missing or damaged is reported before any work
    report = gather(
        args.runs, args.records, folder=args.out.parent, picture=args.picture, frost=frost, title=args.title
    )
    write(report, args.out)
    for warning in find_warnings(report):
        print(f"warning: {warning}", file=sys.stderr)
    print(args.out)
    return 0
