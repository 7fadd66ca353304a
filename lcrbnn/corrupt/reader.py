"""One run that is read under corruption: its network, its heads, and its record, which grows as it is read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lcrbnn.corrupt.head import Head, Trunk, fit_head
from lcrbnn.corrupt.scores import summarize
from lcrbnn.data import DataSet
from lcrbnn.errors import InputError
from lcrbnn.layers import evaluating
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.train.augment import normalize
from lcrbnn.train.build import load_network
from lcrbnn.train.captured import Answers
from lcrbnn.train.dataset import run_row
from lcrbnn.train.numerics import numerics
from lcrbnn.train.objective import arithmetic

KIND = "robustness"
AS_TRAINED = "as trained"
REFIT = ("refit on clean", "refit on corrupted")  # heads, by the training images that they are fitted on
READING = "test images, clean and corrupted: not among the readings that the run's own record counts"


class Reader:
    """A finished run on a device. `errors` has, for each head and corruption, percent at severities 1 to 5."""

    def __init__(self, path: Path, record: Path, device: torch.device, heads: Sequence[str]) -> None:
        """Load its network; `heads` names those that will be read."""
        folder = RunFolder(path)
        self.path, self.record, self.device = path, record, device
        self.spec, model, self.digest = load_network(folder)
        if not folder.record.exists():
            raise InputError(f"the run in {path} is not finished: the test split is for finished runs")
        if read_record(folder.record)["figures"].get("checkpoint_sha256") != self.digest:
            raise InputError(f"the newest checkpoint in {path} is not the one that its record is of")
        self.row: DataSet = run_row(folder, self.spec)
        self.trunk = Trunk(model.to(device))
        self.heads: dict[str, Head] = {AS_TRAINED: Head.of(self.trunk.last)}
        self.settings: dict[str, Any] = {}
        self.clean: dict[str, float] = {}
        self.errors: dict[str, dict[str, list[float]]] = {head: {} for head in heads}
        self._answers = Answers(self.trunk, self.spec, capture=True)
        mean, std = torch.tensor(self.row.mean), torch.tensor(self.row.std)
        self._scale = (1 / (self.row.top * std)).reshape(-1, 1, 1).to(device)
        self._shift = (-mean / std).reshape(-1, 1, 1).to(device)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Of uint8 images: what the last layer is given, float32 (n, k)."""
        with numerics(self.spec), evaluating(self.trunk):
            return self._answers(normalize(images, self._scale, self._shift)).clone()

    @torch.no_grad()
    def wrong(self, images: Tensor, labels: Tensor) -> dict[str, int]:
        """How many of these images each head gets wrong, in the arithmetic of the run."""
        features, found = self.features(images), {}
        with numerics(self.spec), arithmetic(self.spec, self.device):
            for name, head in self.heads.items():
                found[name] = int((head(features).argmax(1) != labels).sum())
        return found

    def fit(self, name: str, features: Tensor, labels: Tensor) -> None:
        """Add a head, fitted on what the trunk says of some training images."""
        self.heads[name] = fit_head(features, labels, self.heads[AS_TRAINED])

    def done(self, corruption: str) -> bool:
        """Whether every head has been read under this corruption."""
        return all(corruption in found for found in self.errors.values())

    def go_on(self, settings: dict[str, Any]) -> None:
        """Keep the settings, and take over what a record of the same settings has."""
        self.settings = {"run": self.spec.stored(), "checkpoint_sha256": self.digest, **settings}
        if not self.record.exists():
            self._make_place()
            return
        record = read_record(self.record)
        figures = record["figures"]
        if record.get("kind") != KIND or record["settings"] != self.settings:
            raise InputError(
                f"{self.record} is a record of something else, or of other settings: "
                "remove it, or say another folder for records"
            )
        if not isinstance(figures.get("clean"), dict) or set(figures.get("errors", ())) != set(self.errors):
            raise InputError(f"{self.record} is damaged: it lacks errors of some of its heads")
        self.clean, self.errors = figures["clean"], figures["errors"]

    def _make_place(self) -> None:
        """See that a record can be written, before there is anything to lose."""
        place = self.record.parent
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise InputError(f"a record cannot be written to {self.record}: {error.strerror}") from None

    def write(self, complete: bool) -> None:
        """Leave what is known so far."""
        means = {}
        for head, errors in self.errors.items():
            found = summarize(errors, self.clean[head], self.row.image)._asdict()
            means[head] = {name: None if value is None else round(value, 4) for name, value in found.items()}
        figures = {
            "complete": complete,
            "reading": READING,
            "clean": self.clean,
            "means": means,
            "errors": self.errors,
        }
        write_record(self.record, KIND, self.settings, figures)
