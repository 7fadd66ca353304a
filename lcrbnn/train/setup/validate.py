"""Check the settings and folders of runs before any work starts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path

from lcrbnn.errors import InputError, check_output_folder, lookup
from lcrbnn.lcr.regularizers import REGULARIZERS
from lcrbnn.nn.models.model_registry import MODELS
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.distributed.ranks import Ranks
from lcrbnn.train.setup.build_network import build_lcr_variant, configure_method, is_lcr_active
from lcrbnn.train.setup.dataset import RunSplits, check_same_classes, fill_in_num_classes, find_dataset
from lcrbnn.train.setup.load import DEFAULT_RUNS_FOLDER, find_referenced_runs, load_run, read_spec, resolve_run
from lcrbnn.train.setup.network_file import (
    fill_in_network_digest,
    parse_reference,
    read_run_network,
    read_spec_network,
)
from lcrbnn.train.setup.spec import TrainSpec

# Runs that train in parallel have one data set in memory and one arithmetic.
SHARED_SETTINGS = (
    "dataset",
    "image_size",
    "num_classes",
    "skip_broken_images",
    "split_seed",
    "train_split",
    "precision",
    "deterministic",
)


def validate_jobs(jobs: Mapping[Path, TrainSpec], data_folder: Path, *, resume: bool) -> dict[Path, TrainSpec]:
    """Return the runs with their number of classes and the SHA-256 of their network file.

    Raise InputError unless each can start or resume in its folder."""
    complete_jobs = {
        path: _fill_in_network_digest(fill_in_num_classes(spec, data_folder), RunFolder(path))
        for path, spec in jobs.items()
    }
    check_run_folders(complete_jobs, resume)
    return complete_jobs


def _fill_in_network_digest(spec: TrainSpec, folder: RunFolder) -> TrainSpec:
    is_started = folder.exists() and not folder.has_no_output()
    return fill_in_network_digest(spec, folder, read_spec(folder) if is_started else None)


def read_network_source(spec: TrainSpec, folder: RunFolder) -> bytes | None:
    """Return the user's network file: the copy of a started run, otherwise the file that the spec names."""
    is_started = folder.exists() and not folder.has_no_output()
    return read_run_network(folder, spec) if is_started else read_spec_network(spec)


def check_parallel_runs(specs: Sequence[TrainSpec], ranks: Ranks) -> None:
    """Raise InputError unless these runs can train in parallel in this process."""
    if ranks.is_launched and len(specs) > 1:
        raise InputError("several processes train one run at a time: start each seed by itself")
    for spec in specs:
        for name in SHARED_SETTINGS:
            value, first_value = getattr(spec, name), getattr(specs[0], name)
            if value != first_value:
                raise InputError(f"parallel runs must have the same {name}; got {first_value} and {value}")


def check_referenced_run_images(spec: TrainSpec, runs_folder: Path, splits: RunSplits) -> None:
    """Raise InputError if the teacher or the init_from run was trained on other classes or other training images."""
    for role, reference in (("the teacher", spec.teacher), ("the init_from run", spec.init_from)):
        if reference and splits.class_names:
            check_same_classes(resolve_run(reference, runs_folder), splits.class_names, role)
        if reference and spec.train_split != "train+valid":
            check_training_images(resolve_run(reference, runs_folder), splits.train_images_digest, role)


def validate_spec(spec: TrainSpec) -> None:
    """Raise InputError if a spec is invalid. This function does not read images or other runs."""
    find_dataset(spec)
    if parse_reference(spec.model) is None:
        lookup(MODELS, spec.model, "network", "lcrbnn models")
    variant, method = build_lcr_variant(spec), configure_method(spec)
    if variant.weight > 0 and method is None:
        raise InputError(
            "a full-precision network has no binary layers for the LCR loss: lcr_weight and lcr_gradient_ratio need a "
            "binarization method"
        )
    if spec.lcr_blocks and variant.granularity != "blocks":
        raise InputError(
            f"lcr_blocks names blocks, and lcr_options has granularity {variant.granularity}: give only one"
        )
    uses_teacher_for_lcr = is_lcr_active(variant) and variant.reference == "teacher"
    if spec.teacher and spec.distillation_alpha == 0 and not uses_teacher_for_lcr:
        raise InputError(
            "a teacher is given and nothing uses it: set distillation_alpha, or lcr_options reference=teacher"
        )


# Dictionary: setting that needs another setting -> (name of the other setting, function: spec -> whether it is set).
REQUIRED_SETTINGS: dict[str, tuple[str, Callable[[TrainSpec], bool]]] = {
    "init_parameters": ("init_from, the run whose weights are copied", lambda spec: bool(spec.init_from)),
    "lcr_warmup_epochs": ("an lcr_weight or lcr_gradient_ratio of more than 0", lambda spec: spec.uses_lcr),
    "regularizer_weight": (
        "regularizer " + " or ".join(row.name for row in REGULARIZERS.values() if row.loss is not None),
        lambda spec: REGULARIZERS[spec.regularizer].loss is not None,
    ),
    "distillation_temperature": ("a distillation_alpha of more than 0", lambda spec: spec.distillation_alpha > 0),
    "lr_milestones": ("lr_schedule multistep", lambda spec: spec.lr_schedule == "multistep"),
    "lr_gamma": ("lr_schedule multistep", lambda spec: spec.lr_schedule == "multistep"),
}


def reject_unused_settings(spec: TrainSpec, given_names: Iterable[str], num_processes: int = 1) -> None:
    """Raise InputError if a given setting has no effect and does not have its default value.

    `given_names` are the settings that a user gave for this run. A setting from a recipe may be without effect, because
    the user may have changed the setting that it needs.
    """
    given_names = set(given_names)
    batch_norm_requirement = ("several processes (torchrun)", lambda spec: num_processes > 1)
    for name, (requirement, is_met) in {**REQUIRED_SETTINGS, "batch_norm": batch_norm_requirement}.items():
        value = getattr(spec, name)
        if name in given_names and value != getattr(TrainSpec(), name) and not is_met(spec):
            values = value if isinstance(value, tuple) else (value,)
            text = ", ".join(v if isinstance(v, str) else f"{v:g}" for v in values)
            raise InputError(f"{name} {text} is given and nothing uses it: it needs {requirement}")


def check_referenced_runs(
    spec: TrainSpec, runs_folder: Path = DEFAULT_RUNS_FOLDER, earlier_folders: Container[Path] = ()
) -> None:
    """Raise InputError unless the runs that a spec names are finished or will be trained before, in these folders."""
    for requirement, folder in find_referenced_runs(spec, runs_folder).items():
        if not folder.record_file.exists() and folder.path.absolute() not in earlier_folders:
            raise InputError(f"{requirement}, and {folder.path.absolute()} has no record.json")


def check_training_images(folder: RunFolder, digest: str, role: str) -> None:
    """Raise InputError if a run was trained on other images, because this run may be validated on such images."""
    trained_digest = load_run(folder)[3].get("images", "")
    if digest and trained_digest and trained_digest != digest:
        raise InputError(
            f"{role} in {folder.path} was trained on other images than the data folder has now (files were added, "
            "removed or renamed): some of them would be validation images"
        )


def check_run_folders(jobs: Mapping[Path, TrainSpec], resume: bool) -> None:
    """Raise InputError unless each run can start or resume in its folder."""
    for path, spec in jobs.items():
        _check_run_folder(RunFolder(path), spec, resume)


def _check_run_folder(folder: RunFolder, spec: TrainSpec, resume: bool) -> None:
    check_output_folder(folder.path, "a run")
    if not folder.exists():
        folder.check_can_create()
        return
    if folder.has_no_output():  # a run without output can be started again, even with other settings
        return
    if not resume:
        raise InputError(
            f"there is a run in {folder.path} already: add --resume to continue it, or choose another folder"
        )
    difference = read_spec(folder).difference(spec)
    if difference is not None:
        name, stored_value, given_value = difference
        raise InputError(
            f"the run in {folder.path} has {name} {stored_value}, and now it is {given_value}: a run can only be "
            "resumed with the same settings; start this one in another folder"
        )
    if folder.record_file.exists():
        folder.check_record_and_log()
