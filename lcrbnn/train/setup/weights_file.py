"""Write and read the weights of a finished run as one file, which is small enough to be committed.

The file is a checkpoint without the optimizer's state: float32, every bit as it was trained. It contains the settings
of the run, and the record of the run contains its SHA-256.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from torch import nn

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.network_file import reject_network_file
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.state import module_to_arrays, restore_module

MODEL_PREFIX = "model"


class SavedWeights(NamedTuple):
    """A network from a weights file, and the SHA-256 of the checkpoint that it was copied from."""

    spec: TrainSpec
    model: nn.Module
    checkpoint_sha256: str


def write_weights(run: Path, path: Path) -> str:
    """Write the network of a finished run. Return the SHA-256 of the file."""
    spec, model, digest = load_network(RunFolder(run))
    reject_network_file(spec, run)
    facts = {"spec": spec.to_dict(), "checkpoint_sha256": digest}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, Checkpoint(module_to_arrays(model, MODEL_PREFIX), facts))
    except OSError as error:
        raise InputError(f"weights cannot be written to {path}: {error.strerror}") from None
    return compute_file_sha256(path)


def read_weights(path: Path) -> SavedWeights:
    """Return the network in a weights file."""
    arrays, facts = read_checkpoint(path)
    if not isinstance(facts.get("spec"), dict) or not isinstance(facts.get("checkpoint_sha256"), str):
        raise InputError(f"{path} is a checkpoint of a run, not a file with the weights of a finished run")
    spec = TrainSpec.from_dict(facts["spec"])
    reject_network_file(spec, path)
    model = build_network(spec)
    restore_module(model, MODEL_PREFIX, arrays, str(path))
    return SavedWeights(spec, model, facts["checkpoint_sha256"])


def compute_file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
