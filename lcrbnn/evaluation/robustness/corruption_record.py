"""Measure the errors of one network on corrupted images. After each corruption, the errors are written to a record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lcrbnn.data.loading.augment import normalize
from lcrbnn.device import autocast_precision, deterministic_run
from lcrbnn.errors import InputError
from lcrbnn.evaluation.evaluate import EvaluatedModel
from lcrbnn.evaluation.robustness.linear_head import FeatureExtractor, LinearHead, fit_linear_head
from lcrbnn.evaluation.robustness.mce import summarize_errors
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.train.cuda_graph import GraphPredictor

RECORD_KIND = "robustness"
AS_TRAINED = "as trained"
REFIT_HEADS = (
    "refit on clean",
    "refit on corrupted",
)  # names of heads that are trained again, on clean or on corrupted training images
TEST_IMAGES_NOTE = "test images, clean and corrupted: not among the readings that the run's own record counts"


class CorruptionEvaluator:
    """A network whose errors under corruption are measured.

    `errors[head][corruption]` is a list of error rates in percent, one per severity from 1 to 5.
    """

    def __init__(
        self, model: EvaluatedModel, record_path: Path | None, device: torch.device, head_names: Sequence[str]
    ) -> None:
        """Move the network to the device. `head_names` are the heads to measure.

        If the path is None, no record is written.
        """
        self.name, self.record_path, self.device = model.name, record_path, device
        self.spec, self.dataset, self.model_settings = model.spec, model.dataset, model.record_settings
        self.feature_extractor = FeatureExtractor(model.model.to(device))
        self.heads: dict[str, LinearHead] = {AS_TRAINED: LinearHead.from_linear(self.feature_extractor.last_layer)}
        self.settings: dict[str, Any] = {}
        self.clean_errors: dict[str, float] = {}
        self.errors: dict[str, dict[str, list[float]]] = {head: {} for head in head_names}
        self._predict_features = GraphPredictor(self.feature_extractor, self.spec, capture=True)
        mean, std = torch.tensor(self.dataset.mean), torch.tensor(self.dataset.std)
        self._scale = (1 / (self.dataset.max_pixel_value * std)).reshape(-1, 1, 1).to(device)
        self._shift = (-mean / std).reshape(-1, 1, 1).to(device)

    @torch.no_grad()
    def extract_features(self, images: Tensor) -> Tensor:
        """Return the inputs of the last layer for uint8 images: float32 (n, k)."""
        with deterministic_run(self.spec.deterministic, self.spec.precision), eval_mode(self.feature_extractor):
            return self._predict_features(normalize(images, self._scale, self._shift)).clone()

    @torch.no_grad()
    def count_errors(self, images: Tensor, labels: Tensor) -> dict[str, int]:
        """Return the number of misclassified images for each head. The precision is that of the run."""
        features, error_counts = self.extract_features(images), {}
        with (
            deterministic_run(self.spec.deterministic, self.spec.precision),
            autocast_precision(self.spec.precision, self.device),
        ):
            for name, head in self.heads.items():
                error_counts[name] = int((head(features).argmax(1) != labels).sum())
        return error_counts

    def fit_head(self, name: str, features: Tensor, labels: Tensor) -> None:
        """Add a head that is fitted on the features of these training images."""
        self.heads[name] = fit_linear_head(features, labels, self.heads[AS_TRAINED])

    def is_measured(self, corruption: str) -> bool:
        """Return whether the errors of every head are known for this corruption."""
        return all(corruption in errors for errors in self.errors.values())

    def resume(self, settings: dict[str, Any]) -> None:
        """Store the settings. If there is a record with the same settings, load its errors."""
        self.settings = {**self.model_settings, **settings}
        if self.record_path is None or not self.record_path.exists():
            return
        record = read_record(self.record_path)
        figures = record["figures"]
        if record.get("kind") != RECORD_KIND or record["settings"] != self.settings:
            raise InputError(
                f"{self.record_path} is a record with other settings; remove it or choose another folder for records"
            )
        if not isinstance(figures.get("clean"), dict) or set(figures.get("errors", ())) != set(self.errors):
            raise InputError(f"{self.record_path} is damaged: the errors of some heads are missing")
        self.clean_errors, self.errors = figures["clean"], figures["errors"]

    def save_record(self, is_complete: bool) -> None:
        """Write all errors that are measured so far into the record. Do nothing if the network has no record."""
        if self.record_path is None:
            return
        means = {}
        for head, errors in self.errors.items():
            summary = summarize_errors(errors, self.clean_errors[head], self.dataset.image_size)._asdict()
            means[head] = {name: None if value is None else round(value, 4) for name, value in summary.items()}
        figures = {
            "complete": is_complete,
            "reading": TEST_IMAGES_NOTE,
            "clean": self.clean_errors,
            "means": means,
            "errors": self.errors,
        }
        write_record(self.record_path, RECORD_KIND, self.settings, figures)
