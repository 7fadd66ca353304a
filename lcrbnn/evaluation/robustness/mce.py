"""Compute means of the errors under corruption, and the mean corruption error (mCE), which is relative to AlexNet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS

# Dictionary from a corruption to its errors in percent at severities 1 to 5
ErrorsByCorruption = Mapping[str, Sequence[float]]

# Errors of AlexNet on ImageNet-C, averaged over severities (Hendrycks and Dietterich, 2019). The mCE divides by them.
ALEXNET_ERRORS: dict[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
# error of AlexNet on clean images (fraction) as quoted in the literature; the source above does not contain this error
ALEXNET_CLEAN_ERROR = 0.435
MCE_IMAGE_SIDE = 224  # side length in pixels of the images of ImageNet-C, for which alone mCE is defined

MAIN_CORRUPTIONS = tuple(name for name, row in CORRUPTIONS.items() if row.is_main)


class CorruptionSummary(NamedTuple):
    """Mean errors in percent. A field is None if a corruption was not measured.

    The mCE is None unless images are 224 x 224.
    """

    main: float | None  # mean error in percent over the 15 main corruptions and all severities
    all: float | None  # mean error in percent over all 19 corruptions and all severities
    main_worst: float | None  # mean error in percent over the 15 main corruptions at severity 5
    all_worst: float | None  # mean error in percent over all 19 corruptions at severity 5
    mce: float | None
    relative_mce: float | None


def summarize_errors(errors: ErrorsByCorruption, clean_error: float, image_side: int) -> CorruptionSummary:
    """Return all mean errors of one network for images of this side length. `clean_error` is in percent."""
    has_mce = image_side == MCE_IMAGE_SIDE and all(name in errors for name in MAIN_CORRUPTIONS)
    return CorruptionSummary(
        compute_mean_error(errors, MAIN_CORRUPTIONS),
        compute_mean_error(errors, CORRUPTIONS),
        compute_mean_error(errors, MAIN_CORRUPTIONS, only_highest_severity=True),
        compute_mean_error(errors, CORRUPTIONS, only_highest_severity=True),
        compute_mce(errors) if has_mce else None,
        compute_relative_mce(errors, clean_error) if has_mce else None,
    )


def compute_mean_error(
    errors: ErrorsByCorruption, names: Sequence[str] | Mapping[str, object], *, only_highest_severity: bool = False
) -> float | None:
    """Return the mean error over these corruptions, at all severities or only at severity 5.

    Return None if one is missing.
    """
    if not all(name in errors for name in names):
        return None
    return statistics.fmean(
        errors[name][-1] if only_highest_severity else statistics.fmean(errors[name]) for name in names
    )


def compute_mce(errors: ErrorsByCorruption) -> float:
    """Return the mean corruption error in percent, the ratio to AlexNet's error averaged over the 15 corruptions."""
    return statistics.fmean(statistics.fmean(errors[name]) / ALEXNET_ERRORS[name] for name in MAIN_CORRUPTIONS)


def compute_relative_mce(errors: ErrorsByCorruption, clean_error: float) -> float:
    """Return the relative mCE in percent.

    It compares how much corruptions increase the clean error, relative to AlexNet.
    """
    return 100 * statistics.fmean(
        (statistics.fmean(errors[name]) - clean_error) / 100 / (ALEXNET_ERRORS[name] - ALEXNET_CLEAN_ERROR)
        for name in MAIN_CORRUPTIONS
    )
