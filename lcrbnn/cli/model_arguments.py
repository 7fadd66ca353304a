"""Command-line arguments that name networks, as run folders, groups of runs, .bnn files or zoo:NAME."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.errors import InputError
from lcrbnn.zoo.zoo_index import parse_zoo_name

if TYPE_CHECKING:
    from lcrbnn.deploy.engine.graph import BnnModel
    from lcrbnn.evaluation.evaluate import EvaluatedModel
    from lcrbnn.evaluation.seed_groups import SeedGroups

IMAGE_SELECTION_HELP = "the first images, or evenly spaced images if the data set is read from image files"
ZOO_HELP = "zoo:NAME (a trained network of lcrbnn zoo)"
BNN_MODEL_HELP = f".bnn file, or {ZOO_HELP}"
ZOO_COMMANDS = ("predict", "eval", "export", "inspect", "bench", "robustness", "attack", "analyze", "cost")


def load_evaluated_model(source: Path, *, require_finished: bool = False) -> EvaluatedModel:
    """Return the network of the run in a folder, or of zoo:NAME. Raise InputError if the folder has several runs.

    Commands that use test images set `require_finished`: test images are for finished runs only.
    """
    if (name := parse_zoo_name(source)) is not None:
        from lcrbnn.zoo.zoo_model import load_zoo_model

        return load_zoo_model(name)
    from lcrbnn.evaluation.evaluate import load_run_model

    runs = list_run_folders(source)
    if len(runs) > 1:
        names = ", ".join(path.name for path in runs)
        raise InputError(f"{source} contains several runs, {names}: give the folder of one of them")
    return load_run_model(runs[0], require_finished=require_finished)


def list_run_folders(source: Path) -> list[Path]:
    """Return the run folders inside a folder, sorted by seed. For zoo:NAME, return zoo:NAME itself."""
    from lcrbnn.runs.run_folder import find_runs

    return [source] if parse_zoo_name(source) is not None else find_runs(source)


def find_groups(arguments: Iterable[str]) -> SeedGroups:
    """Return groups of runs that are compared seed by seed. A network of the zoo is a group with one seed."""
    from lcrbnn.evaluation import seed_groups

    def identify_zoo_model(source: str) -> tuple[str, int] | None:
        name = parse_zoo_name(source)
        return None if name is None else (name, load_evaluated_model(Path(source)).spec.seed)

    return seed_groups.find_groups(arguments, identify_zoo_model)


def reject_zoo_models(arguments: Iterable[str | Path], reason: str) -> None:
    """Raise InputError with this reason if an argument is zoo:NAME or GROUP=zoo:NAME."""
    for argument in arguments:
        if parse_zoo_name(str(argument).rpartition("=")[2]) is not None:
            raise InputError(f"{reason}; zoo:NAME is for {', '.join(ZOO_COMMANDS)}")


def load_bnn_model(source: Path) -> tuple[BnnModel, Path | bytes]:
    """Return the model, and the file or bytes from which the engine loads it.

    A network of the zoo is exported to bytes first, which needs torch.
    """
    from lcrbnn.deploy.engine.bnn_file import read_model, to_bytes

    name = parse_zoo_name(source)
    if name is None:
        _check_is_file(source)
        return read_model(source), source
    from lcrbnn.deploy.export.export_model import export_model

    evaluated_model = load_evaluated_model(source)
    model = export_model(evaluated_model.model, evaluated_model.dataset, name)
    return model, to_bytes(model)


def _check_is_file(path: Path) -> None:
    """Raise InputError if the path is a run folder, another folder or no file. The message states which of these."""
    from lcrbnn.data.image_files.image_index import describe_non_file
    from lcrbnn.runs.run_folder import RunFolder

    if RunFolder(path).exists():
        raise InputError(
            f"{path} is the folder of a run, not a model file; `lcrbnn export {path} -o FILE.bnn` writes one"
        )
    if (kind := describe_non_file(path)) is not None:
        raise InputError(f"{path} is {kind}, but a model must be a {BNN_MODEL_HELP}")


def add_group_arguments(parser: argparse.ArgumentParser) -> None:
    """Add RUN, for groups of runs that are compared seed by seed, and --out, the folder of their records."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help=f"folder of a run, folder with several seed-N runs, or {ZOO_HELP}; GROUP=FOLDER and GROUP=zoo:NAME set "
        "the name of the group; each further group is compared with the first group, seed by seed",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write one record per run into this folder, as GROUP/seed-N.json (default: no records); if the "
        "folder has a record of a run with the same settings, the run is not measured again",
    )
