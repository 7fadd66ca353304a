"""Measure the errors of networks on corrupted images. Each batch is corrupted once, then all networks evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lcrbnn.data.datasets import DataSet
from lcrbnn.data.image_files.image_folder import format_differing_names
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.device import find_device
from lcrbnn.errors import InputError, check_number, check_output_file, lookup
from lcrbnn.evaluation.corruptions.corruption_registry import (
    CORRUPTIONS,
    SEED,
    SEVERITIES,
    apply_corruption,
    check_image_side,
)
from lcrbnn.evaluation.corruptions.frost_photos import FROST_FOLDER, FrostPhotos
from lcrbnn.evaluation.evaluate import EvaluatedModel
from lcrbnn.evaluation.robustness.corrupted_sets import (
    BATCH_SIZE,
    CorruptedBatch,
    CorruptedSet,
    GeneratedSet,
    open_corrupted_folder,
)
from lcrbnn.evaluation.robustness.corruption_record import AS_TRAINED, REFIT_HEADS, CorruptionEvaluator
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.stop_request import StopRequest
from lcrbnn.train.setup.dataset import divide_splits
from lcrbnn.train.setup.options import RunOptions

CORRUPTION_SEVERITY_PAIRS = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]


@dataclass(frozen=True)
class RobustnessSettings:
    """Settings of a measurement, which select images, corruptions and classifier heads."""

    num_images: int | None = None  # number of test images; None = all test images
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    # folder with published corrupted images; None = corrupt the test images here
    corrupted_data_folder: Path | None = None
    frost_photos_folder: Path | None = None  # folder with the frost photos; None = the folder frost in the data folder
    # True if the last layer is also trained again on training images, and both versions are measured
    refit_heads: bool = False

    @property
    def head_names(self) -> tuple[str, ...]:
        """Return the names of the classifier heads that are measured."""
        return (AS_TRAINED, *REFIT_HEADS) if self.refit_heads else (AS_TRAINED,)

    @property
    def needs_frost_photos(self) -> bool:
        """Return whether the frost photos are needed to corrupt images."""
        return self.refit_heads or (self.corrupted_data_folder is None and "frost" in self.corruptions)


def measure_corruption_errors(
    models: Sequence[tuple[EvaluatedModel, Path | None]],
    options: RunOptions | None = None,
    settings: RobustnessSettings | None = None,
    make_progress_bar: Callable[[int], ProgressBar] = ProgressBar,
) -> list[CorruptionEvaluator]:
    """Return one evaluator per network, with the errors under each corruption. Each network has a record path or None.

    A record is written after each corruption. If a record already contains a corruption, it is not measured again.
    Heads are fitted on training images only.
    """
    options, settings = options or RunOptions(), settings or RobustnessSettings()
    for _, record_path in models:
        if record_path is not None:
            check_output_file(record_path, "a record")
    for corruption in settings.corruptions:
        lookup(CORRUPTIONS, corruption, "corruption", "docs/corruptions.md")
    device = find_device(options.device)
    evaluators = [CorruptionEvaluator(model, record_path, device, settings.head_names) for model, record_path in models]
    dataset = evaluators[0].dataset
    for evaluator in evaluators:
        if evaluator.dataset.name != dataset.name:
            raise InputError(
                "runs that are evaluated together need the same data set; "
                f"got {dataset.name} and {evaluator.dataset.name}"
            )
        if (
            dataset.class_names
            and evaluator.dataset.class_names
            and (different_names := format_differing_names(dataset.class_names, evaluator.dataset.class_names))
        ):
            raise InputError(
                f"runs that are evaluated together need the same classes; only some have {different_names}"
            )
    check_image_side(dataset.channels, dataset.image_size, dataset.name)
    images = dataset.load(options.data_folder)
    corrupted_set, photos = _open_corrupted_set(dataset, images, settings, options, device)
    for evaluator in evaluators:
        evaluator.resume(_build_record_settings(corrupted_set, settings, device))
    unfinished = [evaluator for evaluator in evaluators if not all(map(evaluator.is_measured, settings.corruptions))]
    if unfinished:
        with StopRequest() as stop:
            _Measurement(unfinished, images, corrupted_set, photos, settings, stop, make_progress_bar).run()
    return evaluators


def _open_corrupted_set(
    dataset: DataSet, images: ImageArrays, settings: RobustnessSettings, options: RunOptions, device: torch.device
) -> tuple[CorruptedSet, FrostPhotos | None]:
    """Return the source of corrupted test images, and the frost photos if the source needs them."""
    if settings.num_images is not None:
        check_number(settings.num_images, "--num-images", low=1, high=len(images.test.labels), integer=True)
    photos = None
    if settings.needs_frost_photos:
        photos = FrostPhotos(settings.frost_photos_folder or options.data_folder / FROST_FOLDER, device)
    if settings.corrupted_data_folder is not None:
        return open_corrupted_folder(
            settings.corrupted_data_folder, settings.corruptions, dataset, images.test, settings.num_images, device
        ), photos
    return GeneratedSet(_limit_images(dataset, images.test, settings.num_images), device, photos), photos


def _limit_images(dataset: DataSet, split: Split, max_images: int | None) -> Split:
    return split if max_images is None else dataset.sample_split(split, max_images)


def _build_record_settings(
    corrupted_set: CorruptedSet, settings: RobustnessSettings, device: torch.device
) -> dict[str, Any]:
    """Return the settings, besides the network, on which the figures depend.

    A measurement only resumes with equal settings.
    """
    return {
        "images": corrupted_set.num_images,
        "corrupted_images": corrupted_set.name,
        "seed": SEED,
        "corruptions": list(settings.corruptions),
        "heads": list(settings.head_names),
        "device": device.type,
    }


class _Measurement:
    """Measurement of the missing corruptions. A progress bar counts the batches."""

    def __init__(
        self,
        evaluators: list[CorruptionEvaluator],
        images: ImageArrays,
        corrupted_set: CorruptedSet,
        photos: FrostPhotos | None,
        settings: RobustnessSettings,
        stop: StopRequest,
        make_progress_bar: Callable[[int], ProgressBar],
    ) -> None:
        self.evaluators, self.images, self.corrupted_set, self.photos = evaluators, images, corrupted_set, photos
        self.settings, self.stop = settings, stop
        self.device = evaluators[0].device
        self.corruptions = [
            name for name in settings.corruptions if not all(evaluator.is_measured(name) for evaluator in evaluators)
        ]
        self.clean_set = GeneratedSet(
            _limit_images(evaluators[0].dataset, images.test, settings.num_images), self.device, None
        )
        batches_per_severity = -(-corrupted_set.num_images // BATCH_SIZE)
        total = -(-self.clean_set.num_images // BATCH_SIZE) + batches_per_severity * len(SEVERITIES) * len(
            self.corruptions
        )
        if settings.refit_heads:
            for train in self._training_splits().values():
                total += -(-len(train.labels) // BATCH_SIZE) + min(len(CORRUPTION_SEVERITY_PAIRS), len(train.labels))
        self.progress_bar = make_progress_bar(total)

    def run(self) -> None:
        try:
            if self.settings.refit_heads:
                self._fit_heads()
            clean_batches = _iter_batches(self.clean_set.clean_images, self.clean_set.labels)
            clean_errors = self._measure_error_percent(self.evaluators, clean_batches, "clean")
            for evaluator, errors in zip(self.evaluators, clean_errors, strict=True):
                evaluator.clean_errors = errors
            for corruption in self.corruptions:
                self._measure_corruption(corruption)
        finally:
            self.progress_bar.close()

    def _measure_corruption(self, corruption: str) -> None:
        unfinished = [evaluator for evaluator in self.evaluators if not evaluator.is_measured(corruption)]
        percents_by_severity = [
            self._measure_error_percent(unfinished, self.corrupted_set.iter_batches(corruption, s), f"{corruption} {s}")
            for s in SEVERITIES
        ]
        for i, evaluator in enumerate(unfinished):
            for head in evaluator.errors:
                evaluator.errors[head][corruption] = [percents[i][head] for percents in percents_by_severity]
            evaluator.save_record(all(map(evaluator.is_measured, self.settings.corruptions)))

    def _measure_error_percent(
        self, evaluators: list[CorruptionEvaluator], batches: Iterable[CorruptedBatch], progress_note: str
    ) -> list[dict[str, float]]:
        """Return, for each evaluator, the error of each head in percent."""
        error_counts = [dict.fromkeys(evaluator.errors, 0) for evaluator in evaluators]
        num_images = 0
        for batch in batches:
            for evaluator, counts in zip(evaluators, error_counts, strict=True):
                for head, count in evaluator.count_errors(batch.images, batch.labels).items():
                    counts[head] += count
                self.stop.raise_if_requested()
            num_images += len(batch.labels)
            self.progress_bar.advance(lambda: progress_note)
        return [{head: round(100 * count / num_images, 4) for head, count in counts.items()} for counts in error_counts]

    # -- heads ---------------------------------------------------------------------------------------------------

    def _training_splits(self) -> dict[str, Split]:
        """Return the training images of the runs, by the runs' setting `train_split`."""
        return {r.spec.train_split: divide_splits(r.spec, r.dataset, self.images)[0] for r in self.evaluators}

    def _fit_heads(self) -> None:
        for train_split, train in self._training_splits().items():
            evaluators = [evaluator for evaluator in self.evaluators if evaluator.spec.train_split == train_split]
            images = torch.from_numpy(train.images).to(self.device)
            labels = torch.from_numpy(train.labels).to(self.device)
            clean, corrupted = REFIT_HEADS
            self._fit_head(clean, evaluators, _iter_batches(images, labels))
            self._fit_head(corrupted, evaluators, _iter_mixed_corruptions(images, labels, self.photos))

    def _fit_head(self, head: str, evaluators: list[CorruptionEvaluator], batches: Iterable[CorruptedBatch]) -> None:
        features: list[list[torch.Tensor]] = [[] for _ in evaluators]
        labels: list[torch.Tensor] = []
        for batch in batches:
            for evaluator, model_features in zip(evaluators, features, strict=True):
                model_features.append(evaluator.extract_features(batch.images))
                self.stop.raise_if_requested()
            labels.append(batch.labels)
            self.progress_bar.advance(lambda: head)
        for evaluator, model_features in zip(evaluators, features, strict=True):
            evaluator.fit_head(head, torch.cat(model_features), torch.cat(labels))
            self.stop.raise_if_requested()


def _iter_batches(images: torch.Tensor, labels: torch.Tensor) -> Iterator[CorruptedBatch]:
    for start in range(0, len(labels), BATCH_SIZE):
        yield CorruptedBatch(images[start : start + BATCH_SIZE], labels[start : start + BATCH_SIZE])


def _iter_mixed_corruptions(
    images: torch.Tensor, labels: torch.Tensor, photos: FrostPhotos | None
) -> Iterator[CorruptedBatch]:
    """Yield each training image once. Image i has the corruption and severity with number i mod 95."""
    for first, (name, severity) in enumerate(CORRUPTION_SEVERITY_PAIRS[: len(labels)]):
        rows = torch.arange(first, len(labels), len(CORRUPTION_SEVERITY_PAIRS), device=images.device)
        yield CorruptedBatch(apply_corruption(images[rows], name, severity, rows, photos, split="train"), labels[rows])
