"""Weights of a finished run as a file of their own, small enough to be committed, and its figure made again from them.

The file has the format of a checkpoint without the optimiser's memory: float32, every bit as it was trained. The record
of the run holds its SHA-256, and the file the settings of the run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from lcrbnn.errors import InputError
from lcrbnn.models import Network
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build_network, load_network
from lcrbnn.train.captured import Answers
from lcrbnn.train.dataset import data_row
from lcrbnn.train.evaluate import Accuracy, accuracy
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.options import Options
from lcrbnn.train.spec import Spec
from lcrbnn.train.state import module_arrays, restore_module

PREFIX = "model"


class Weights(NamedTuple):
    """A network as a file has it, and the checkpoint that it is from."""

    spec: Spec
    model: Network
    checkpoint: str  # SHA-256


def write_weights(run: Path, path: Path) -> str:
    """Write the network of a finished run; return the SHA-256 of the file."""
    spec, model, digest = load_network(RunFolder(run))
    facts = {"spec": spec.stored(), "checkpoint_sha256": digest}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, Checkpoint(module_arrays(model, PREFIX), facts))
    except OSError as error:
        raise InputError(f"weights cannot be written to {path}: {error.strerror}") from None
    return file_digest(path)


def read_weights(path: Path) -> Weights:
    """The network in a file of weights."""
    arrays, facts = read_checkpoint(path)
    if not isinstance(facts.get("spec"), dict) or not isinstance(facts.get("checkpoint_sha256"), str):
        raise InputError(f"{path} holds a checkpoint of a run, not the weights of a finished one")
    spec = Spec.of(facts["spec"])
    model = build_network(spec)
    restore_module(model, PREFIX, arrays, str(path))
    return Weights(spec, model, facts["checkpoint_sha256"])


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recompute(path: Path, options: Options) -> Accuracy:
    """Read the test images with the network in a file of weights: the figure of its record, made again."""
    spec, model, _ = read_weights(path)
    row = data_row(spec)
    device = find_device(options.device)
    with numerics(spec):
        test = Batches(row.load(options.data_folder).test, row, device)
        return accuracy(Answers(model.to(device), spec), test)
