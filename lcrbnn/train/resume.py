"""Start or resume a run in its folder, and convert its state to and from checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lcrbnn import __version__
from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.errors import InputError
from lcrbnn.runs.atomic_files import write_atomic
from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.train import state
from lcrbnn.train.run_context import RunContext, RunState
from lcrbnn.train.setup.dataset import check_same_classes, read_picture_split
from lcrbnn.train.setup.validate_checkpoint import (
    SOURCE_DIGEST,
    SUMS_ARRAY,
    WITHOUT_OPTIMIZER_STATE,
    check_checkpoint_metadata,
    check_training_state,
)


def start_or_resume(run: RunContext) -> tuple[RunState, list[str]]:
    """Start or resume a run in its folder, which the caller has locked. Return its state and messages for the user."""
    labels_digest = state.digest_arrays({"labels": state.to_array(run.splits.train.labels)})
    fingerprint = [__version__, len(run.splits.train), labels_digest, run.splits.train_images_digest]
    run.ranks.check_same(str(fingerprint), "the version of lcrbnn or the training images")
    run.ranks.run_on_rank0(lambda: _prepare_folder(run))
    run_state, messages = _resume(run)
    if any(run.parts.lcr_modules) and not run.spec.lcr_blocks and run.parts.retention is not None:
        messages.append(f"LCR compares the feature maps of the {run.parts.lcr_modules} (--lcr-blocks chooses others)")
    if run.splits.broken_images:
        count = len(run.splits.broken_images)
        messages.append(f"{count:,} broken images are left out: {run.folder.broken_images_file}")
    return run_state, messages


def _prepare_folder(run: RunContext) -> None:
    """Create the run folder, or remove what an interrupted process has left.

    Write the files that accompany spec.json.
    """
    with _explain_write_errors(run):
        if run.folder.has_no_output():
            run.folder.delete_start()
    if not run.folder.exists():
        run.folder.create(run.spec.to_dict())
    with _explain_write_errors(run):
        run.folder.remove_leftovers()
        if run.parts.network_source is not None:
            write_atomic(run.folder.network_file, [run.parts.network_source])
        if run.spec.skip_broken_images:
            run.folder.write_broken_images(run.splits.broken_images)
        if run.splits.class_names:
            check_same_classes(run.folder, run.splits.class_names, "the run")
            if not run.folder.read_classes():
                run.folder.write_classes(run.splits.class_names)
        if run.splits.picture_split is not None:
            _store_picture_split(run, run.splits.picture_split)


def _store_picture_split(run: RunContext, split: PictureSplit) -> None:
    """Write the split of the pictures, or raise InputError if the run has stored another one."""
    stored_split = read_picture_split(run.folder)
    if stored_split is None:
        run.folder.write_split(split._asdict())
    elif stored_split != split:
        raise InputError(
            f"the run in {run.folder.path} has stored another split of the pictures: resume it without other runs"
        )


@contextmanager
def _explain_write_errors(run: RunContext) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"the run in {run.folder.path} cannot be written: {error.strerror or error}") from None


def _resume(run: RunContext) -> tuple[RunState, list[str]]:
    """Restore the newest valid checkpoint. Shorten the log to the epochs that this checkpoint contains."""
    run_state, path, messages, step_description = restore_newest_checkpoint(run)
    messages += run.ranks.run_on_rank0(lambda: _truncate_log(run, run_state, path))
    if path is None:
        return run_state, messages
    if messages:
        messages.append(f"resuming from the checkpoint before it, {path}")
    if step_description != run.describe_step():
        messages.append(
            f"the run was trained with {step_description} and resumes with {run.describe_step()}: the last bits will "
            "differ"
        )
    if run_state.epoch < run.spec.epochs:
        steps = run.step.steps_per_epoch
        messages.append(f"resuming from epoch {run_state.epoch + 1}, step {run_state.step} of {steps}")
    return run_state, messages


def _truncate_log(run: RunContext, run_state: RunState, path: Path | None) -> list[str]:
    folder = run.folder
    with _explain_write_errors(run):
        if path is None:
            epochs = len(folder.read_log())
            folder.truncate_log(0)
            return (
                [f"no checkpoint was saved yet in {folder.path}: its {epochs} epochs are trained again"]
                if epochs
                else []
            )
        folder.truncate_log(run_state.epoch)
        folder.mark_newer_as_damaged(path)
        return []


class RestoredRun(NamedTuple):
    """The state in the newest valid checkpoint.

    If there is no checkpoint, the path is None and the state is the start.
    """

    state: RunState
    path: Path | None
    complaints: list[str]  # sentences about newer checkpoints that could not be used, one per checkpoint
    step_description: str = ""  # description of the environment of the process that wrote the checkpoint


def restore_newest_checkpoint(run: RunContext) -> RestoredRun:
    """Restore network, LCR loss, optimizer and sums of the epoch from the newest valid checkpoint of the folder.

    Rank 0 reads the checkpoint and sends it to the other processes, because they may have no access to the folder.
    """
    used: list[tuple[Checkpoint, RunState]] = []

    def use(checkpoint: Checkpoint, path: Path) -> None:
        used.append((checkpoint, restore_checkpoint(run, checkpoint, path)))

    def read() -> tuple[Path | None, list[str], Checkpoint | None]:
        path, complaints = run.folder.use_newest_valid_checkpoint(use)
        return path, complaints, used[-1][0] if path else None

    path, complaints, checkpoint = run.ranks.run_on_rank0(read)
    if path is None or checkpoint is None:
        return RestoredRun(RunState(run.spec.lcr_weight), None, complaints)
    run_state = used[-1][1] if run.ranks.is_first else restore_checkpoint(run, checkpoint, path)
    return RestoredRun(run_state, path, complaints, checkpoint.facts["made"])


def restore_checkpoint(run: RunContext, checkpoint: Checkpoint, path: Path) -> RunState:
    """Restore network, LCR loss, optimizer and sums from a checkpoint. Return the checkpoint's run state."""
    where = f"the checkpoint {path}"
    arrays, facts = checkpoint
    check_checkpoint_metadata(checkpoint, path)
    state.restore_module(run.parts.model, "model", arrays, where)
    if not run.spec.matches_digest(facts["spec"]):
        raise InputError(f"{where} belongs to a run with other settings than those in spec.json")
    if facts["teacher"] != run.parts.teacher_digest:
        raise InputError(f"{where} was trained with another teacher than the one now in {run.spec.teacher}")
    images_digest = run.splits.train_images_digest
    if images_digest and facts.get("images", images_digest) != images_digest:
        raise InputError(f"{where} was trained on other images than the data folder has now")
    if SOURCE_DIGEST in facts:
        raise InputError(f"{where} is a slim copy, which contains the network only: no run can resume from it")
    if run.parts.retention is not None:
        state.restore_module(run.parts.retention, "retention", arrays, where)
    names = run.parts.parameter_names
    check_training_state(checkpoint, names.values(), run.spec, path, run.step.steps_per_epoch)
    state.restore_optimizer(run.parts.optimizer, names, arrays)
    run.step.sums.copy_(torch.from_numpy(arrays[SUMS_ARRAY].copy()))
    position = (facts["epoch"], facts["step"])
    return RunState(facts["weight"], *position, facts["seconds"], saved_position=position)


def collect_arrays(run: RunContext) -> dict[str, np.ndarray]:
    """Return all arrays of a checkpoint, with network, LCR loss, optimizer and epoch sums."""
    parts = run.parts
    arrays = state.module_to_arrays(parts.model, "model")
    if parts.retention is not None:
        arrays |= state.module_to_arrays(parts.retention, "retention")
    arrays |= state.optimizer_to_arrays(parts.optimizer, parts.parameter_names)
    return arrays | {SUMS_ARRAY: state.to_array(run.step.sums)}


def make_checkpoint(run: RunContext, run_state: RunState, arrays: dict[str, np.ndarray], seconds: float) -> Checkpoint:
    """Return a checkpoint of the run. `seconds` is the time that was spent on this epoch so far."""
    without_state = state.find_parameters_without_state(run.parts.optimizer, run.parts.parameter_names)
    images_digest = run.splits.train_images_digest
    facts: dict[str, Any] = {
        "spec": run.spec.digest(),
        "teacher": run.parts.teacher_digest,
        "made": run.describe_step(),
        "weight": run_state.full_lcr_weight,
        "epoch": run_state.epoch,
        "step": run_state.step,
        "seconds": seconds,
        **({"images": images_digest} if images_digest else {}),
        **({WITHOUT_OPTIMIZER_STATE: without_state} if without_state else {}),
    }
    return Checkpoint(arrays, facts)
