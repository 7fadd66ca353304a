"""`lcrbnn robustness` measures the error of trained networks on corrupted test images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.model_arguments import ZOO_HELP, list_run_folders, load_evaluated_model
from lcrbnn.cli.run_options import add_data_folder_option, add_device_option, add_frost_photos_option
from lcrbnn.errors import InputError
from lcrbnn.zoo.zoo_index import parse_zoo_name

if TYPE_CHECKING:
    from lcrbnn.evaluation.robustness.corruption_record import CorruptionEvaluator

RECORD_NAME = "robustness.json"

EXAMPLES = (
    "lcrbnn robustness runs/digits --corruptions gaussian_noise fog",
    "lcrbnn robustness runs/none runs/lcr --num-images 1000",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the corruptions and the folder of the records."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help=f"folder of a run, folder with several seed-N runs, or {ZOO_HELP}",
    )
    parser.add_argument(
        "--num-images",
        type=int,
        metavar="N",
        help="number of test images, evenly spaced in the test set (default: all test images)",
    )
    parser.add_argument(
        "--corruptions", nargs="+", metavar="NAME", help="names of corruptions (default: all 19 corruptions)"
    )
    parser.add_argument(
        "--refit-head",
        action="store_true",
        help="also fit the last layer again on clean and on corrupted training images, and evaluate both versions",
    )
    parser.add_argument(
        "--corrupted-data",
        type=Path,
        metavar="FOLDER",
        help="folder of the published CIFAR-10-C, Tiny-ImageNet-C or ImageNet-C (default: corrupt the test images with "
        "this package)",
    )
    add_frost_photos_option(parser)
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help=f"folder of the result records (default: {RECORD_NAME} in the folder of each run; no record for networks "
        "of the zoo)",
    )
    add_device_option(parser)
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Print one table per group of networks, and the differences between the groups."""
    from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
    from lcrbnn.evaluation.robustness.corruption_errors import RobustnessSettings, measure_corruption_errors
    from lcrbnn.evaluation.robustness.robustness_table import render_group_differences, render_group_table
    from lcrbnn.runs.progress import ProgressBar
    from lcrbnn.train.setup.options import RunOptions

    settings = RobustnessSettings(
        args.num_images, tuple(args.corruptions or CORRUPTIONS), args.corrupted_data, args.frost_photos, args.refit_head
    )
    if args.frost_photos is not None and not settings.needs_frost_photos:
        raise InputError(
            "--frost-photos has no effect: it needs --refit-head, or the corruption frost without --corrupted-data"
        )
    groups = {folder: list_run_folders(folder) for folder in args.runs}
    records = _assign_record_files(groups, args.records)
    models = [(load_evaluated_model(Path(source), require_finished=True), record) for source, record in records.items()]
    evaluators = {
        r.name: r
        for r in measure_corruption_errors(models, RunOptions(args.device, args.data_folder), settings, ProgressBar)
    }
    evaluators_by_folder: dict[str, list[CorruptionEvaluator]] = {
        str(f): [evaluators[str(path)] for path in paths] for f, paths in groups.items()
    }
    for name, group in evaluators_by_folder.items():
        print(render_group_table(name, group))
    for line in render_group_differences(evaluators_by_folder):
        print(line)
    print("records: " + _describe_record_location(records, args.records))
    return 0


def _assign_record_files(groups: dict[Path, list[Path]], folder: Path | None) -> dict[str, Path | None]:
    """Return the record file of each run, which is in the run folder, or in the common folder if one is given.

    A network of the zoo has a record (else None) only if a folder is given.
    """
    records: dict[str, Path | None] = {}
    for path in (path for paths in groups.values() for path in paths):
        target = _record_file(path, folder)
        if str(path) in records or (target is not None and target in records.values()):
            raise InputError(
                f"two of the networks would have the same record file, {target}; measure them one after the other"
            )
        records[str(path)] = target
    return records


def _record_file(path: Path, folder: Path | None) -> Path | None:
    zoo_name = parse_zoo_name(path)
    if folder is None:
        return path / RECORD_NAME if zoo_name is None else None
    if zoo_name is not None:
        return folder / f"{zoo_name}.json"
    resolved = path.resolve()
    name = f"{resolved.parent.name}/{resolved.name}" if resolved.name.startswith("seed-") else resolved.name
    return folder / f"{name}.json"


def _describe_record_location(records: dict[str, Path | None], folder: Path | None) -> str:
    """Return a text that says where the records are."""
    if folder is not None:
        return str(folder)
    parts = [f"{RECORD_NAME} in the folder of each run"] if any(records.values()) else []
    zoo_parts = ["none for networks of the zoo (use --records FOLDER)"] if not all(records.values()) else []
    return "; ".join(parts + zoo_parts)
