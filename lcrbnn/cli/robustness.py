"""`lcrbnn robustness`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.train import add_options
from lcrbnn.errors import InputError

if TYPE_CHECKING:
    from lcrbnn.corrupt.reader import Reader

RECORD = "robustness.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs, what is read, and where records go."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or of its seed-N folders")
    parser.add_argument("--images", type=int, metavar="N", help="the first N test images; all if not said")
    parser.add_argument("--corruptions", nargs="+", metavar="NAME", help="only these; all 19 if not said")
    parser.add_argument(
        "--refit", action="store_true", help="also with heads fitted anew, on clean and on corrupted training images"
    )
    parser.add_argument(
        "--folder", type=Path, metavar="FOLDER", help="a CIFAR-10-C or ImageNet-C as published, instead of making one"
    )
    parser.add_argument(
        "--frost", type=Path, metavar="FOLDER", help="of the photos; frost/ in the data folder if not said"
    )
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help=f"of the records; {RECORD} in each run's folder if not said"
    )
    add_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Read, print a table a group of runs, and what differs between the groups."""
    from lcrbnn.corrupt.measure import Wanted, measure
    from lcrbnn.corrupt.table import CORRUPTIONS
    from lcrbnn.runs.progress import Progress
    from lcrbnn.study.robustness import comparison, table
    from lcrbnn.train.run import Options, runs_in

    groups = {folder: runs_in(folder) for folder in args.runs}
    places = _places(groups, args.records)
    wanted = Wanted(args.images, tuple(args.corruptions or CORRUPTIONS), args.folder, args.frost, args.refit)
    readers = {r.path: r for r in measure(places, Options(args.device, args.data_folder), wanted, Progress)}
    found: dict[str, list[Reader]] = {
        str(folder): [readers[path] for path in paths] for folder, paths in groups.items()
    }
    for name, group in found.items():
        print(table(name, group))
    for line in comparison(found):
        print(line)
    print("records: " + (str(args.records) if args.records else f"{RECORD} in the folder of each run"))
    return 0


def _places(groups: dict[Path, list[Path]], records: Path | None) -> dict[Path, Path]:
    """Where the record of each run goes: into its own folder, or into one folder under the run's name."""
    places: dict[Path, Path] = {}
    for paths in groups.values():
        for path in paths:
            whole = path.resolve()
            name = f"{whole.parent.name}/{whole.name}" if whole.name.startswith("seed-") else whole.name
            target = path / RECORD if records is None else records / f"{name}.json"
            if path in places or target in places.values():
                raise InputError(
                    f"two of the runs would leave the same record, {target}: read them one after the other"
                )
            places[path] = target
    return places
