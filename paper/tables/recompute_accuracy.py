"""Compute the test accuracy of a run again, from its committed weights."""

from __future__ import annotations

from pathlib import Path

from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.weights_file import read_weights
from lcrbnn.train.validation import Accuracy, compute_accuracy


def recompute_test_accuracy(path: Path, options: RunOptions) -> Accuracy:
    """Return the test accuracy of the network in a weights file. The record contains this accuracy, too."""
    spec, model, _ = read_weights(path)
    row = find_dataset(spec)
    device = find_device(options.device)
    with deterministic_run(spec.deterministic, spec.precision):
        test = InMemoryBatches(row.load(options.data_folder).test, row, device)
        return compute_accuracy(GraphPredictor(model.to(device), spec), test)
