"""`lcrbnn robustness`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli._given import SPACED, ZOO, find_subject, places
from lcrbnn.cli.train import add_options
from lcrbnn.errors import InputError
from lcrbnn.zoo import named

if TYPE_CHECKING:
    from lcrbnn.corrupt.reader import Reader

RECORD = "robustness.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs, what is read, and where records go."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help=f"folder of a run, or of its seed-N folders; or {ZOO}"
    )
    parser.add_argument("--images", type=int, metavar="N", help=f"only N test images: {SPACED}")
    parser.add_argument("--corruptions", nargs="+", metavar="NAME", help="only these; all 19 if not said")
    parser.add_argument(
        "--refit", action="store_true", help="also with heads fitted anew, on clean and on corrupted training images"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="a CIFAR-10-C, Tiny-ImageNet-C or ImageNet-C as published, instead of making one",
    )
    parser.add_argument(
        "--frost", type=Path, metavar="FOLDER", help="of the photos; frost/ in the data folder if not said"
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help=f"of the records; if not said, {RECORD} in each run's folder, and none of networks of the zoo",
    )
    add_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Read, print a table a group of networks, and what differs between the groups."""
    from lcrbnn.corrupt.measure import Wanted, measure
    from lcrbnn.corrupt.table import CORRUPTIONS
    from lcrbnn.runs.progress import Progress
    from lcrbnn.study.robustness import comparison, table
    from lcrbnn.train.options import Options

    wanted = Wanted(args.images, tuple(args.corruptions or CORRUPTIONS), args.folder, args.frost, args.refit)
    if args.frost is not None and not wanted.uses_photos:
        raise InputError(
            "--frost is given and nothing uses it: it goes with --refit, or with the corruption frost and no --folder"
        )
    groups = {folder: places(folder) for folder in args.runs}
    records = _records(groups, args.records)
    subjects = [(find_subject(Path(place), finished=True), record) for place, record in records.items()]
    readers = {r.name: r for r in measure(subjects, Options(args.device, args.data_folder), wanted, Progress)}
    found: dict[str, list[Reader]] = {str(f): [readers[str(path)] for path in paths] for f, paths in groups.items()}
    for name, group in found.items():
        print(table(name, group))
    for line in comparison(found):
        print(line)
    print("records: " + _where(records, args.records))
    return 0


def _records(groups: dict[Path, list[Path]], folder: Path | None) -> dict[str, Path | None]:
    """The record of each network: in the run's own folder, or in one folder under its name; zoo:NAME has no own one."""
    records: dict[str, Path | None] = {}
    for path in (path for paths in groups.values() for path in paths):
        target = _record(path, folder)
        if str(path) in records or (target is not None and target in records.values()):
            raise InputError(
                f"two of the networks would leave the same record, {target}: read them one after the other"
            )
        records[str(path)] = target
    return records


def _record(path: Path, folder: Path | None) -> Path | None:
    member = named(path)
    if folder is None:
        return path / RECORD if member is None else None
    if member is not None:
        return folder / f"{member}.json"
    whole = path.resolve()
    name = f"{whole.parent.name}/{whole.name}" if whole.name.startswith("seed-") else whole.name
    return folder / f"{name}.json"


def _where(records: dict[str, Path | None], folder: Path | None) -> str:
    """A line about where they are."""
    if folder is not None:
        return str(folder)
    own = [f"{RECORD} in the folder of each run"] if any(records.values()) else []
    none = ["none of networks of the zoo; --records FOLDER writes them"] if not all(records.values()) else []
    return "; ".join(own + none)
