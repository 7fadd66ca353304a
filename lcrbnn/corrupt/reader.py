"""One network that is read under corruption: its heads, and its record, which grows as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lcrbnn.corrupt.head import Head, Trunk, fit_head
from lcrbnn.corrupt.scores import summarize
from lcrbnn.errors import InputError
from lcrbnn.layers import evaluating
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.train.augment import normalize
from lcrbnn.train.captured import Answers
from lcrbnn.train.numerics import numerics
from lcrbnn.train.objective import arithmetic
from lcrbnn.train.subject import Subject

KIND = "robustness"
AS_TRAINED = "as trained"
REFIT = ("refit on clean", "refit on corrupted")  # heads, by the training images that they are fitted on
READING = "test images, clean and corrupted: not among the readings that the run's own record counts"


class Reader:
    """A network on a device. `errors` has, for each head and corruption, percent at severities 1 to 5."""

    def __init__(self, subject: Subject, record: Path | None, device: torch.device, heads: Sequence[str]) -> None:
        """Take the network; `heads` names those that will be read. Without a record nothing is kept of it."""
        self.name, self.record, self.device = subject.name, record, device
        self.spec, self.row, self.said = subject.spec, subject.row, subject.said
        self.trunk = Trunk(subject.model.to(device))
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
        self.settings = {**self.said, **settings}
        if self.record is None or not self.record.exists():
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

    def write(self, complete: bool) -> None:
        """Leave what is known so far, if there is a record."""
        if self.record is None:
            return
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
