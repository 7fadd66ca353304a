"""Check the content of a checkpoint with valid checksums, and that the run's record belongs to this checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lcrbnn.errors import InputError, check_number
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.spec import TrainSpec

# Names of metadata and arrays are part of the file format and must not change.
SOURCE_DIGEST = "whole"  # metadata key of a slim copy, for the SHA-256 of the original checkpoint
WITHOUT_OPTIMIZER_STATE = "without_memory"  # metadata key for the names of the parameters that never had a gradient
SUMS_ARRAY = "sums"
SUMS_SHAPE = (4,)  # shape of the sums: loss, LCR loss, number of correct predictions, number of images
_METADATA_KEYS = ("spec", "teacher", "made", "weight", "epoch", "step", "seconds")
_PREFIXES = ("model/", "retention/", "optimizer/")


def check_checkpoint_metadata(checkpoint: Checkpoint, path: Path) -> None:
    """Raise InputError unless the metadata of a checkpoint is complete and of the right types."""
    facts, damaged = checkpoint.facts, _describe_damage(path)
    missing = [name for name in _METADATA_KEYS if name not in facts]
    if missing:
        raise InputError(f"{damaged}: it lacks {', '.join(missing)}")
    for name in ("spec", "made", "images", SOURCE_DIGEST):
        if name in facts and not isinstance(facts[name], str):
            raise InputError(f"{damaged}: its {name} must be a text; got {facts[name]!r}")
    if not isinstance(facts["teacher"], str | None):
        raise InputError(f"{damaged}: its teacher must be a text or null; got {facts['teacher']!r}")
    for name in ("epoch", "step"):
        check_number(facts[name], f"{damaged}: its {name}", low=0, high=2**63 - 1, integer=True)
    for name in ("seconds", "weight"):
        check_number(facts[name], f"{damaged}: its {name}", low=0)
    if SOURCE_DIGEST in facts and not re.fullmatch("[0-9a-f]{64}", facts[SOURCE_DIGEST]):
        raise InputError(
            f"{damaged}: its {SOURCE_DIGEST} must be a SHA-256 (64 hexadecimal digits); got {facts[SOURCE_DIGEST]!r}"
        )
    names = facts.get(WITHOUT_OPTIMIZER_STATE, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{damaged}: its {WITHOUT_OPTIMIZER_STATE} must be a list of names; got {names!r}")


def check_training_state(
    checkpoint: Checkpoint, parameters: Iterable[str], spec: TrainSpec, path: Path, steps_per_epoch: int | None = None
) -> None:
    """Raise InputError unless position, lambda, sums and optimizer state are possible in a run of `spec`.

    `parameters` are the array names of the trained parameters. `steps_per_epoch` is None if it is not known. Call
    `check_checkpoint_metadata` first. A slim copy has neither sums nor optimizer state.
    """
    facts, arrays, damaged = checkpoint.facts, checkpoint.arrays, _describe_damage(path)
    _check_position(facts["epoch"], facts["step"], spec.epochs, path, steps_per_epoch)
    if spec.lcr_gradient_ratio == 0 and facts["weight"] != spec.lcr_weight:
        raise InputError(f"{damaged}: its weight is {facts['weight']:g}, and lcr_weight of its run {spec.lcr_weight:g}")
    unknown_names = [name for name in arrays if not name.startswith(_PREFIXES) and name != SUMS_ARRAY]
    if unknown_names:
        raise InputError(f"{damaged}: it has the unknown array {unknown_names[0]!r}")
    if SOURCE_DIGEST not in facts:
        _check_sums(checkpoint, damaged)
        _check_optimizer_state(checkpoint, parameters, spec, path)


def _check_position(epoch: int, step: int, epochs: int, path: Path, steps_per_epoch: int | None) -> None:
    """Raise InputError unless a run can be at this position after the number of steps in the file name."""
    steps_done = _parse_step_in_name(path)
    is_valid = epoch < epochs or (epoch == epochs and step == 0)
    if steps_per_epoch is not None:
        is_valid = is_valid and step <= steps_per_epoch and steps_done in (None, epoch * steps_per_epoch + step)
    elif steps_done is not None:  # there must be a number of steps per epoch that fits epoch, step and file name
        in_full_epochs = steps_done - step
        is_divisible = epoch > 0 and in_full_epochs % epoch == 0 and in_full_epochs // epoch >= max(step, 1)
        is_valid = is_valid and (in_full_epochs == 0 if epoch == 0 else is_divisible)
    if not is_valid:
        steps = "" if steps_per_epoch is None else f", with {steps_per_epoch} steps per epoch"
        raise InputError(
            f"{_describe_damage(path)}: epoch {epoch}, step {step} does not fit its file name in a run of {epochs} "
            f"epochs{steps}"
        )


def _check_sums(checkpoint: Checkpoint, damaged: str) -> None:
    if SUMS_ARRAY not in checkpoint.arrays:
        raise InputError(f"{damaged}: it lacks the array {SUMS_ARRAY!r}")
    sums, step = checkpoint.arrays[SUMS_ARRAY], checkpoint.facts["step"]
    if sums.dtype != np.float64 or sums.shape != SUMS_SHAPE:
        raise InputError(f"{damaged}: {SUMS_ARRAY!r} is {sums.dtype} {sums.shape} instead of float64 {SUMS_SHAPE}")
    _, _, correct, images = sums.tolist()
    if not 0 <= correct <= images or images < step or (step == 0 and sums.any()):
        raise InputError(
            f"{damaged}: {SUMS_ARRAY!r} has {correct:g} correct predictions of {images:g} images at step {step}"
        )


def _check_optimizer_state(checkpoint: Checkpoint, parameters: Iterable[str], spec: TrainSpec, path: Path) -> None:
    """Raise InputError unless the optimizer arrays have the names, types and shapes of the trained parameters."""
    arrays, damaged = checkpoint.arrays, _describe_damage(path)
    stateless_names = checkpoint.facts.get(WITHOUT_OPTIMIZER_STATE, [])
    names = list(parameters)
    unknown_names = [name for name in stateless_names if name not in names]
    if unknown_names:
        raise InputError(
            f"{damaged}: its {WITHOUT_OPTIMIZER_STATE} has {unknown_names[0]!r}, which is no parameter of its network"
        )
    # A run that ever had a gradient has optimizer state of some parameter.
    if stateless_names and len(set(stateless_names)) == len(names):
        raise InputError(
            f"{damaged}: its {WITHOUT_OPTIMIZER_STATE} has all parameters, so the optimizer's state is lost"
        )
    stateful_names = [name for name in names if name not in stateless_names]
    expected_parameters = {
        f"optimizer/{name}/{key}": arrays[name] for name in stateful_names for key in _optimizer_state_keys(spec)
    }
    missing_names = [name for name in expected_parameters if name not in arrays]
    if missing_names:
        raise InputError(f"{damaged}: it lacks the array {missing_names[0]!r}")
    extra_names = [name for name in arrays if name.startswith("optimizer/") and name not in expected_parameters]
    if extra_names:
        raise InputError(
            f"{damaged}: it has the array {extra_names[0]!r}, which the optimizer of its run does not have"
        )
    for name, parameter in expected_parameters.items():
        value, is_step = arrays[name], name.endswith("/step")
        dtype, shape = (np.dtype(np.float32), ()) if is_step else (parameter.dtype, parameter.shape)
        if value.dtype != dtype or value.shape != shape:
            raise InputError(f"{damaged}: {name!r} is {value.dtype} {value.shape} instead of {dtype} {shape}")
        if is_step and not _is_step_count(float(value), _parse_step_in_name(path)):
            raise InputError(f"{damaged}: {name!r} is not a possible number of steps; got {float(value):g}")
        if name.endswith("/exp_avg_sq") and (value < 0).any():
            raise InputError(f"{damaged}: {name!r}, a mean of squares, has negative numbers")


def _optimizer_state_keys(spec: TrainSpec) -> tuple[str, ...]:
    """Return the names of the entries that the optimizer stores for each parameter."""
    if spec.optimizer == "adam":
        return ("step", "exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if spec.momentum > 0 else ()


def _is_step_count(value: float, max_steps: int | None) -> bool:
    return value.is_integer() and value >= 0 and (max_steps is None or value <= max_steps)


def _parse_step_in_name(path: Path) -> int | None:
    """Return N from a checkpoint name step-N.safetensors, or None for any other name."""
    match = re.fullmatch(r"step-(\d{9,})", path.stem)
    return int(match[1]) if match else None


def _describe_damage(path: Path) -> str:
    return f"the checkpoint {path} is damaged"


def digest_checkpoint(path: Path, checkpoint: Checkpoint) -> str:
    """Return the SHA-256 of a checkpoint file. For a slim copy, return that of the original checkpoint."""
    return checkpoint.facts.get(SOURCE_DIGEST) or hashlib.sha256(path.read_bytes()).hexdigest()


def check_matches_record(folder: RunFolder, digest: str) -> None:
    """Raise InputError if the record of the run has another digest than that of its newest checkpoint."""
    if folder.record_file.exists() and read_record(folder.record_file)["figures"].get("checkpoint_sha256") != digest:
        raise InputError(
            f"the newest checkpoint in {folder.path} is not the one in its record: restore the recorded checkpoint"
        )


def explain_record_mismatch(path: Path) -> str:
    """Return a sentence if the record of a run does not belong to the run's newest checkpoint, otherwise "".

    `path` is the folder of the run, or its record. Without a checkpoint or without a record there is no mismatch.
    """
    folder = RunFolder(path if path.is_dir() else path.parent)
    newest = folder.find_newest_checkpoint()
    if newest is None or not folder.record_file.exists() or (path.is_file() and not path.samefile(folder.record_file)):
        return ""
    try:
        check_matches_record(folder, digest_checkpoint(newest, read_checkpoint(newest)))
    except InputError as error:
        return str(error)
    return ""
