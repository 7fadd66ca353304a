"""Build the parts of a training run from its spec, with network, teacher, LCR loss and optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.lcr.choose_blocks import LcrModules
from lcrbnn.lcr.retention import Retention
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, Ranks
from lcrbnn.train.distributed.sync_batch_norm import convert_sync_batch_norm
from lcrbnn.train.setup.build_network import (
    build_lcr_variant,
    build_network,
    convert_to_float64,
    find_lcr_modules,
    is_lcr_active,
)
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.load import DEFAULT_RUNS_FOLDER, load_network, resolve_run
from lcrbnn.train.setup.optimizers import build_optimizer, find_latent_weights
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import check_referenced_runs, validate_spec
from lcrbnn.train.state import module_to_arrays, restore_module, to_array


class TrainingParts(NamedTuple):
    """The objects that a training step uses."""

    model: nn.Module
    teacher: nn.Module | None
    teacher_digest: str | None  # SHA-256 of the teacher's checkpoint: a run is only resumed with the same teacher
    retention: Retention | None
    optimizer: torch.optim.Optimizer
    parameter_names: dict[Tensor, str]  # every trained parameter, with its name in checkpoints
    lcr_modules: LcrModules = LcrModules()  # the blocks or layers that LCR compares
    network_source: bytes | None = None  # the content of the user's network file


def build_training_parts(
    spec: TrainSpec,
    device: torch.device,
    *,
    fused: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
    runs_folder: Path = DEFAULT_RUNS_FOLDER,
    network_source: bytes | None = None,
) -> TrainingParts:
    """Build the parts of a run. The initialization of the network depends only on the seed.

    A `fused` optimizer reads its learning rate from the device, which a captured step needs. `runs_folder` contains the
    runs that the spec names as study:PLAN/VARIANT/seed-N. `network_source` is the content of the user's network file.
    """
    check_referenced_runs(spec, runs_folder)
    validate_spec(spec)
    model = build_network(spec, network_source)
    if spec.init_from:
        _initialize_from_run(spec, model, resolve_run(spec.init_from, runs_folder))
    model = model.to(device)
    if ranks.is_launched and spec.batch_norm == "sync":
        convert_sync_batch_norm(model)
    teacher, digest = (
        (None, None) if not spec.teacher else _load_teacher(spec, device, resolve_run(spec.teacher, runs_folder))
    )
    lcr_modules = _find_measured_modules(spec, model)
    retention = _build_retention(spec, model, teacher, lcr_modules)
    names: dict[Tensor, str] = {p: f"model/{n}" for n, p in model.named_parameters()}
    if retention is not None:
        names |= {p: f"retention/{n}" for n, p in retention.named_parameters()}
    optimizer = build_optimizer(spec, model, names, fused)
    return TrainingParts(model, teacher, digest, retention, optimizer, names, lcr_modules, network_source)


def _find_measured_modules(spec: TrainSpec, model: nn.Module) -> LcrModules:
    """Return the modules for Retention. Only a run that trains with LCR needs them."""
    try:
        return find_lcr_modules(spec, model)
    except InputError:
        if is_lcr_active(build_lcr_variant(spec)):
            raise
        return LcrModules()


def _build_retention(
    spec: TrainSpec, model: nn.Module, teacher: nn.Module | None, lcr_modules: LcrModules
) -> Retention | None:
    """Return the LCR loss of a run, or None if it trains without."""
    variant = build_lcr_variant(spec)
    if not is_lcr_active(variant):  # without this return, a variant that does not suit the network would be an error
        return None
    reference = teacher if variant.reference == "teacher" else None
    # The training step detects an overflow itself, at the same step on all processes.
    return Retention(
        model,
        variant,
        teacher=reference,
        seed=spec.seed,
        check_overflow=False,
        blocks=lcr_modules.blocks,
        layers=lcr_modules.layers,
    )


def _check_validation_images_unseen(spec: TrainSpec, other_spec: TrainSpec, other_run: str) -> None:
    """Raise InputError if the other run was trained on the validation images of this run."""
    if spec.train_split != "train+valid" and other_spec.train_split == "train+valid":
        raise InputError(
            f"{other_run} was trained on all training images, which include the validation images of this run: train "
            "that run with train_split train, or this run with train_split train+valid"
        )


def _initialize_from_run(spec: TrainSpec, model: nn.Module, folder: RunFolder) -> None:
    """Copy the weights of a finished run into a new network."""
    other_spec, other_model, _ = load_network(folder)
    _check_validation_images_unseen(spec, other_spec, f"the run in {folder.path}")
    if (other_spec.dataset, other_spec.model) != (spec.dataset, spec.model):
        raise InputError(
            f"the run in {folder.path} trains {other_spec.model} on {other_spec.dataset}, and this run trains "
            f"{spec.model} on {spec.dataset}"
        )
    latent_weights = find_latent_weights(model) if spec.init_parameters == "non-latent" else set()
    kept_arrays = {f"model/{name}": to_array(p) for name, p in model.named_parameters() if p in latent_weights}
    arrays = module_to_arrays(other_model, "model") | kept_arrays
    restore_module(model, "model", arrays, f"the run in {folder.path}")


def _load_teacher(spec: TrainSpec, device: torch.device, folder: RunFolder) -> tuple[nn.Module, str]:
    """Return the network of the teacher, frozen, and the SHA-256 of its checkpoint."""
    teacher_spec, model, digest = load_network(folder)
    if teacher_spec.dataset != spec.dataset:
        raise InputError(
            f"the teacher in {folder.path} was trained on {teacher_spec.dataset}, and this run trains on {spec.dataset}"
        )
    teacher_classes, num_classes = find_dataset(teacher_spec).num_classes, find_dataset(spec).num_classes
    if teacher_classes != num_classes:
        raise InputError(f"the teacher in {folder.path} has {teacher_classes} classes, and this run has {num_classes}")
    _check_validation_images_unseen(spec, teacher_spec, f"the teacher in {folder.path}")
    if spec.precision == "float64" != teacher_spec.precision:
        # The teacher needs the precision of the network, because LCR compares the activations of both
        convert_to_float64(model)
    return model.to(device).eval().requires_grad_(False), digest
