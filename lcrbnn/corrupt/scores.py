"""Scores: means of the errors under corruption, and their ratio to AlexNet's, which is what mCE means."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lcrbnn.corrupt.table import CORRUPTIONS

Errors = Mapping[str, Sequence[float]]  # percent, for each corruption, severities 1 to 5

# AlexNet's error on ImageNet-C, the mean over severities: what mCE divides by. Hendrycks and Dietterich, 2019.
ALEXNET: dict[str, float] = {
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
ALEXNET_CLEAN = 0.435  # as it is quoted; the source of the others does not have it
NORMALIZED = 224  # only ImageNet-C has a normaliser: the side of its images

MAIN = tuple(name for name, row in CORRUPTIONS.items() if row.main)


class Summary(NamedTuple):
    """Mean errors in percent; None where a corruption was not read, or where there is no normaliser."""

    main: float | None  # the 15, all severities
    all: float | None  # the 19
    main_worst: float | None  # the 15 at severity 5
    all_worst: float | None  # the 19 at severity 5
    mce: float | None
    relative_mce: float | None


def summarize(errors: Errors, clean: float, side: int) -> Summary:
    """All means of one network on images of this side; `clean` is its error on clean images, in percent."""
    known = side == NORMALIZED and all(name in errors for name in MAIN)
    return Summary(
        mean_error(errors, MAIN),
        mean_error(errors, CORRUPTIONS),
        mean_error(errors, MAIN, worst=True),
        mean_error(errors, CORRUPTIONS, worst=True),
        mce(errors) if known else None,
        relative_mce(errors, clean) if known else None,
    )


def mean_error(errors: Errors, names: Sequence[str] | Mapping[str, object], *, worst: bool = False) -> float | None:
    """Over these corruptions, all severities or only the fifth; None if one is missing."""
    if not all(name in errors for name in names):
        return None
    return statistics.fmean(errors[name][-1] if worst else statistics.fmean(errors[name]) for name in names)


def mce(errors: Errors) -> float:
    """Mean corruption error: each of the 15 over AlexNet's, in percent."""
    return statistics.fmean(statistics.fmean(errors[name]) / ALEXNET[name] for name in MAIN)


def relative_mce(errors: Errors, clean: float) -> float:
    """The same for what corruption adds to the clean error."""
    return 100 * statistics.fmean(
        (statistics.fmean(errors[name]) - clean) / 100 / (ALEXNET[name] - ALEXNET_CLEAN) for name in MAIN
    )
