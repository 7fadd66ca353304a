"""Figures of the small studies on a CPU that paper/docs/LOG.md and docs/method.md quote."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from paper.figures import Passage
from paper.figures.record_values import (
    format_mean_std,
    mean_ratio_distance,
    read_last_epoch,
    replace_hyphens,
)

SEEDS_PER_PLAN = {"small-regularizers": 5, "small-below": 8}
REGULARIZERS = ("default", "spectral", "spectral-signs", "defensive", "decay-3e-4")


def read_valid_top1(plan: str, variant: str) -> list[float]:
    """Return the validation accuracy of the last epoch in percent, one value per seed."""
    return read_last_epoch(f"{plan}/{variant}", "valid_top1", SEEDS_PER_PLAN[plan])


def compute_gain(plan: str, variant: str) -> PairedDifference:
    """Return the paired difference in validation accuracy between a variant and the baseline."""
    return compare_paired(read_valid_top1(plan, "none"), read_valid_top1(plan, variant))


def regularizers() -> Iterator[Passage]:
    """Yield the comparison of LCR with other regularizers."""
    plan = "small-regularizers"
    yield "paper/docs/LOG.md", f"| `none` | {format_mean_std(read_valid_top1(plan, 'none'))} |  |  |"
    for variant in REGULARIZERS:
        gain, accuracy = compute_gain(plan, variant), format_mean_std(read_valid_top1(plan, variant))
        yield "paper/docs/LOG.md", f"| `{variant}` | {accuracy} | {replace_hyphens(gain)} | {gain.detectable:.2f} |"
    for variant in REGULARIZERS[:4]:
        yield "docs/method.md", replace_hyphens(compute_gain(plan, variant))


def distance_below() -> Iterator[Passage]:
    """Yield the result of the variant with the distance `ratio-below-1`."""
    plan = "small-below"
    gain = compute_gain(plan, "below")
    without, with_lcr = (read_valid_top1(plan, variant) for variant in ("none", "below"))
    yield "paper/docs/LOG.md", f"{format_mean_std(without)} % without, {format_mean_std(with_lcr)} % with it"
    yield "paper/docs/LOG.md", f"{replace_hyphens(gain)}; detectable difference {gain.detectable:.2f}"
    distances = [
        statistics.fmean(map(mean_ratio_distance, read_last_epoch(f"{plan}/{variant}", "sigma_ratios", 8)))
        for variant in ("none", "below")
    ]
    yield "paper/docs/LOG.md", "from {:.2f} to {:.2f}".format(*distances)


PASSAGES = [regularizers, distance_below]
