"""A trained network that is measured: with its spec, its data set, and what records say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.data import DataSet
from lcrbnn.models import Network
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import load_finished, load_network
from lcrbnn.train.dataset import run_row
from lcrbnn.train.spec import Spec


class Subject(NamedTuple):
    """What is measured. `said` goes into every record of it: how it was trained, and the digest of its weights."""

    name: str  # for messages and tables
    spec: Spec  # its precision is the one that the network answers in
    model: Network
    row: DataSet
    said: dict[str, Any]


def run_subject(path: Path, *, finished: bool = False) -> Subject:
    """The network of a run as its newest checkpoint has it; `finished` refuses a run whose test images are not due."""
    folder = RunFolder(path)
    spec, model, digest = load_finished(folder) if finished else load_network(folder)
    said = {"run": spec.stored(), "checkpoint_sha256": digest}
    return Subject(str(path), spec, model, run_row(folder, spec), said)
