"""Load the spec and the trained network of a run from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.network_file import read_run_network
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate_checkpoint import (
    check_checkpoint_metadata,
    check_matches_record,
    check_training_state,
    digest_checkpoint,
)
from lcrbnn.train.state import restore_module

STUDY_PREFIX = "study:"  # prefix of a run of a study in a spec: study:PLAN/VARIANT/seed-N
DEFAULT_RUNS_FOLDER = Path("runs")  # folder that contains the runs of studies, in one folder per plan


def resolve_run(reference: str, runs_folder: Path = DEFAULT_RUNS_FOLDER) -> RunFolder:
    """Return the run that a spec names, either by its folder or as study:PLAN/VARIANT/seed-N."""
    return RunFolder(
        runs_folder / reference.removeprefix(STUDY_PREFIX) if reference.startswith(STUDY_PREFIX) else Path(reference)
    )


def read_spec(folder: RunFolder) -> TrainSpec:
    """Return the spec of the run in a folder."""
    try:
        return TrainSpec.from_dict(folder.read_spec())
    except InputError as error:
        message = str(error)
        raise InputError(message if str(folder.path) in message else f"{folder.spec_file}: {message}") from None


def load_network(folder: RunFolder) -> tuple[TrainSpec, nn.Module, str]:
    """Return the spec of a run, the network in its newest checkpoint, and the SHA-256 of that checkpoint.

    The SHA-256 of a slim copy is that of the original checkpoint. If the run is finished, its record must contain this
    SHA-256.
    """
    spec, model, digest, _ = load_run(folder)
    return spec, model, digest


def load_finished_network(folder: RunFolder) -> tuple[TrainSpec, nn.Module, str]:
    """Return the same as `load_network`. Raise InputError unless the run is finished."""
    if folder.exists() and not folder.record_file.exists():
        raise InputError(f"the run in {folder.path} is not finished: the test split is only for finished runs")
    return load_network(folder)


def load_run(folder: RunFolder) -> tuple[TrainSpec, nn.Module, str, dict[str, Any]]:
    """Return the same as `load_network`, and the metadata of the checkpoint."""
    spec = read_spec(folder)
    newest = folder.find_newest_checkpoint()
    if newest is None:
        raise InputError(f"the run in {folder.path} has no checkpoint yet")
    checkpoint = read_checkpoint(newest)
    check_checkpoint_metadata(checkpoint, newest)
    if not spec.matches_digest(checkpoint.facts["spec"]):
        raise InputError(f"the checkpoint {newest} belongs to a run with other settings than those in spec.json")
    model = build_network(spec, read_run_network(folder, spec))
    restore_module(model, "model", checkpoint.arrays, f"the checkpoint {newest}")
    check_training_state(checkpoint, _find_trained_arrays(model, checkpoint), spec, newest)
    digest = digest_checkpoint(newest, checkpoint)
    check_matches_record(folder, digest)
    return spec, model, digest, checkpoint.facts


def _find_trained_arrays(model: nn.Module, checkpoint: Checkpoint) -> list[str]:
    """Return the names of the arrays of trained parameters. Those of the LCR loss are the ones with optimizer state."""
    names_with_state = (name.removeprefix("optimizer/").rpartition("/")[0] for name in checkpoint.arrays)
    lcr_names = {name for name in names_with_state if name.startswith("retention/") and name in checkpoint.arrays}
    return [*(f"model/{name}" for name, _ in model.named_parameters()), *sorted(lcr_names)]


def find_referenced_runs(spec: TrainSpec, runs_folder: Path = DEFAULT_RUNS_FOLDER) -> dict[str, RunFolder]:
    """Return the runs that a spec initializes from or uses as teacher, by the requirement in error messages."""
    references = {"init_from needs a finished run": spec.init_from, "a teacher is a finished run": spec.teacher}
    return {
        requirement: resolve_run(reference, runs_folder) for requirement, reference in references.items() if reference
    }


@contextmanager
def explain_data_folder(spec: TrainSpec) -> Iterator[None]:
    """Inside this context, an error about image files also names the option for the folder of the files."""
    try:
        yield
    except InputError as error:
        if find_dataset(spec).find_image_folder is None or "--data-folder" in str(error):
            raise
        raise InputError(
            f"{error}; give the same --data-folder as in training, because a run does not store it"
        ) from None
