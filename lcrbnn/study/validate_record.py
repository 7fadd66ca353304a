"""Check that the record of a run has all numbers that tables need."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError

# number of test images of the data sets that have a fixed test split
TEST_IMAGES = {"cifar10": 10_000, "cifar10-small": 10_000, "digits": 500}


def validate_record(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the record of a run. Raise InputError with the first fault if a number is missing or invalid."""
    if record.get("kind") != "train":
        raise InputError(f"{path} is a record of kind {record.get('kind')!r}, not of a training run")
    last_epoch = record["figures"].get("last_epoch")
    if not isinstance(last_epoch, dict):
        raise InputError(f"{path} has no figures of the last epoch")
    for name in ("train_top1", "valid_top1"):
        _check_percentage(last_epoch.get(name), f"{path}: {name} of the last epoch", optional=name == "valid_top1")
    gradient_ratio = last_epoch.get("lcr_gradient_ratio")
    if not _is_finite_number(gradient_ratio) and gradient_ratio is not None:
        raise InputError(f"{path}: lcr_gradient_ratio of the last epoch must be a number; got {gradient_ratio!r}")
    ratios = last_epoch.get("sigma_ratios")
    if ratios is not None and not (isinstance(ratios, list) and all(isinstance(r, int | float) for r in ratios)):
        raise InputError(f"{path}: sigma_ratios of the last epoch must be a list of numbers; got {ratios!r}")
    noise_top1 = record["figures"].get("noise_top1")
    if noise_top1 is not None and not (
        isinstance(noise_top1, dict) and all(map(_is_finite_number, noise_top1.values()))
    ):
        raise InputError(f"{path}: the accuracies under noise must be numbers; got {noise_top1!r}")
    for result in record.get("test_results", []):
        _check_test_result(result, record["settings"].get("dataset"), path)
    return record


def _check_test_result(result: Any, dataset: Any, path: Path) -> None:
    if not isinstance(result, dict) or result.get("split") != "test":
        raise InputError(f"{path} has a test result that is not of test images: {result!r}")
    _check_percentage(result.get("top1"), f"{path}: top1 of a test result")
    _check_percentage(result.get("top5"), f"{path}: top5 of a test result", optional=True)
    images = result.get("images")
    if not isinstance(images, int) or images < 1 or images != TEST_IMAGES.get(dataset, images):
        expected = f"; {dataset} has {TEST_IMAGES[dataset]:,}" if dataset in TEST_IMAGES else ""
        raise InputError(f"{path}: a test result is of {images!r} images{expected}")


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_percentage(value: Any, description: str, *, optional: bool = False) -> None:
    if not (optional and value is None) and not (_is_finite_number(value) and 0 <= value <= 100):
        raise InputError(f"{description} must be a percentage; got {value!r}")
