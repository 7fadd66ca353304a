"""Evaluate a trained network on its validation split or its test split."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.errors import InputError
from lcrbnn.runs.record import append_test_result
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.setup.dataset import find_run_dataset, open_splits, open_test_split, read_picture_split
from lcrbnn.train.setup.load import explain_data_folder, load_finished_network, load_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import check_training_images
from lcrbnn.train.validation import Accuracy, compute_accuracy


class Evaluation(NamedTuple):
    """Accuracy of a network on one split, and how many test results its record contains."""

    accuracy: Accuracy
    # Number of test results in the record after this test; 0 if the validation split was evaluated
    num_test_results: int


def check_evaluable(path: Path, *, use_test_split: bool) -> None:
    """Raise InputError if `evaluate` would reject this run. This function reads the run folder but no images."""
    _load_evaluable(RunFolder(path), use_test_split)


def _load_evaluable(folder: RunFolder, use_test_split: bool) -> tuple[TrainSpec, nn.Module, str]:
    return load_finished_network(folder) if use_test_split else load_network(folder)


def evaluate(path: Path, options: RunOptions | None = None, *, use_test_split: bool = False) -> Evaluation:
    """Return the accuracy of a run on its validation split. With `use_test_split`, use the test split instead.

    A test result is added to the record of the run. The run is locked during this time.
    """
    options = options or RunOptions()
    folder = RunFolder(path)
    device = find_device(options.device)
    spec, model, digest = _load_evaluable(folder, use_test_split)
    class_names, picture_split = folder.read_classes(), read_picture_split(folder)
    with ExitStack() as stack:
        if use_test_split:
            stack.enter_context(folder.lock())
            with explain_data_folder(spec):
                batches, broken_images = open_test_split(
                    spec, options.data_access, device, stack, class_names, picture_split
                )
        else:
            uncached_access = replace(options.data_access, cache_images="no")
            with explain_data_folder(spec):
                splits, *_ = open_splits(
                    [spec],
                    uncached_access,
                    device,
                    stack,
                    folder.read_broken_images(),
                    class_names=class_names,
                    picture_split=picture_split,
                )
            check_training_images(folder, splits.train_images_digest, "the run")
            if splits.valid is None:
                raise InputError(
                    f"the run in {path} was trained on all {len(splits.train):,} training images and has no validation "
                    "images; evaluate the test split with --test"
                )
            batches, broken_images = splits.valid, splits.broken_images
        stack.enter_context(deterministic_run(spec.deterministic, spec.precision))
        accuracy = compute_accuracy(GraphPredictor(model.to(device), spec), batches)
        if not use_test_split:
            return Evaluation(accuracy, 0)
        test_result = {"split": "test", **accuracy._asdict(), "checkpoint_sha256": digest, "device": device.type}
        if broken_images:
            test_result["broken_images"] = broken_images
        return Evaluation(accuracy, append_test_result(folder.record_file, test_result))


class EvaluatedModel(NamedTuple):
    """A trained network of a run or of the zoo, with its data set, and with settings that identify it in records."""

    name: str  # for messages and tables
    spec: TrainSpec  # spec.precision is the precision of evaluation
    model: nn.Module
    dataset: DataSet
    record_settings: dict[str, Any]  # training spec and SHA-256 of the weights; every record contains both


def load_run_model(path: Path, *, require_finished: bool = False) -> EvaluatedModel:
    """Return the network of the newest checkpoint of a run.

    With `require_finished`, an unfinished run raises InputError, because only finished runs may use the test split.
    """
    folder = RunFolder(path)
    spec, model, digest = load_finished_network(folder) if require_finished else load_network(folder)
    record_settings = {"spec": spec.to_dict(), "checkpoint_sha256": digest}
    return EvaluatedModel(str(path), spec, model, find_run_dataset(folder, spec), record_settings)
