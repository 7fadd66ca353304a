"""Figures of the first screening of LCR variants (paper/results/cifar10-screen)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from lcrbnn.study.study_variants import read_toml
from paper.figures import Passage
from paper.figures.record_values import (
    STUDIES,
    format_mean_std,
    format_row,
    mean_ratio_distance,
    read_last_epoch,
    read_noise_accuracy,
    read_runs,
    replace_hyphens,
)

PLAN = "cifar10-screen"
NUM_SEEDS, NUM_EPOCHS = 2, 50
VARIANTS = list(read_toml(STUDIES / f"{PLAN}.toml", "plan")[1]["variants"])


def last_values(variant: str, column: str) -> list[Any]:
    """Return a log column of the last epoch, one value per seed."""
    return read_last_epoch(f"{PLAN}/{variant}", column, NUM_SEEDS)


def values_at_epoch(variant: str, epoch: int, column: str) -> list[Any]:
    """Return a log column of one epoch, one value per seed."""
    histories = [run["figures"]["history"] for run in read_runs(f"{PLAN}/{variant}", NUM_SEEDS)]
    return [next(line[column] for line in history if line["epoch"] == epoch) for history in histories]


def noise_accuracy(variant: str) -> list[float]:
    """Return the validation accuracy under noise, one value per seed."""
    return read_noise_accuracy(f"{PLAN}/{variant}", NUM_SEEDS)


def ratio_distances(variant: str, epoch: int = NUM_EPOCHS) -> list[float]:
    """Return the mean |σ_B/σ_F − 1| after an epoch, one value per seed."""
    return [mean_ratio_distance(ratios) for ratios in values_at_epoch(variant, epoch, "sigma_ratios")]


def compare_valid_top1(variant: str) -> PairedDifference:
    """Return the difference in validation accuracy between a variant and the baseline."""
    return compare_paired(last_values("none", "valid_top1"), last_values(variant, "valid_top1"))


def format_fraction(value: float, decimals: int = 3) -> str:
    """Return a value as text without the zero in front of its decimal point."""
    return f"{value:.{decimals}f}".removeprefix("0")


def format_change(variant: str) -> str:
    """Return the change in validation accuracy in percentage points."""
    return replace_hyphens(f"{compare_valid_top1(variant).mean:+.1f}")


def format_pair(values: Sequence[float], decimals: int = 1) -> str:
    """Return the values of two seeds as text."""
    return "{} and {}".format(*(format_fraction(v, decimals) if v < 1 else f"{v:,.{decimals}f}" for v in values))


def _format_interval(difference: PairedDifference) -> str:
    return replace_hyphens(f"{difference.mean:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]")


def screen_rows() -> Iterator[str]:
    """Yield one row per variant: accuracy, accuracy under noise, gradient ratio, and mean |σ_B/σ_F − 1|."""
    for variant in VARIANTS:
        cells = []
        for values, baseline in (
            (last_values(variant, "valid_top1"), last_values("none", "valid_top1")),
            (noise_accuracy(variant), noise_accuracy("none")),
        ):
            cells.append(format_mean_std(values, 1))
            cells.append("" if variant == "none" else _format_interval(compare_paired(baseline, values)))
        gradient_ratios = last_values(variant, "lcr_gradient_ratio")
        cells.append("" if None in gradient_ratios else format_fraction(statistics.fmean(gradient_ratios), 4))
        cells.append(format_fraction(statistics.fmean(ratio_distances(variant))))
        yield format_row(f"`{variant}`", *cells)


def screen_sentences() -> Iterator[Passage]:
    """Yield the figures in the sentences about the screening."""
    mean = statistics.fmean
    distance = {variant: format_fraction(mean(ratio_distances(variant))) for variant in VARIANTS}
    train_top1 = [f"{mean(last_values(v, 'train_top1')):.1f}" for v in ("none", "eq9-share-2", "eq9-share-10")]
    at_epoch_37 = [f"{mean(values_at_epoch(v, 37, 'valid_top1')):.1f}" for v in ("eq9-share-10-ramp", "none")]
    early = ("eq9-share-10-ramp", "eq9-share-2")
    ratios_at_3 = [format_pair(values_at_epoch(v, 3, "lcr_gradient_ratio"), 3) for v in early]
    valid_at_3 = [f"{mean(values_at_epoch(v, 3, 'valid_top1')):.0f}" for v in early]
    channel = [
        format_pair([r[-1] for r in values_at_epoch("channel-share-10", epoch, "sigma_ratios")], 2) for epoch in (1, 50)
    ]
    raw = [format_pair(ratio_distances("eq8-raw-share-10", epoch), 2) for epoch in (1, 50)]
    block_7 = format_pair([r[6] for r in values_at_epoch("eq8-unit-share-10", 50, "sigma_ratios")], 2)
    significant = [v for v in VARIANTS if v != "none" and compare_valid_top1(v).is_significant]
    noise_loss = {
        v: f"{mean(last_values(v, 'valid_top1')) - mean(noise_accuracy(v)):.1f}"
        for v in ("none", "eq9-share-2", "teacher-share-10")
    }

    def format_differences(variant: str) -> str:
        pairs = zip(last_values("none", "valid_top1"), last_values(variant, "valid_top1"), strict=True)
        return replace_hyphens(format_pair([b - a for a, b in pairs]))

    large_lambdas = [
        value / 10**power for value, power in zip(last_values("eq9-share-30", "lcr_weight"), (5, 8), strict=True)
    ]
    collapse = [values_at_epoch("eq8-raw-share-10", epoch, "valid_top1")[1] for epoch in (47, 50)]
    paper_1_ratio = format_pair(last_values("paper-1", "lcr_gradient_ratio"), 3)
    official_ratio = format_pair(last_values("official", "lcr_gradient_ratio"), 4)
    for text in (
        f"by seed {format_differences('eq9-share-2')}, {format_differences('eq9-share-10')}",
        f"2 % of the gradient: {format_change('eq9-share-2')} points; 10 %: {format_change('eq9-share-10')}",
        f"with 30 % the two runs end at {format_pair(last_values('eq9-share-30', 'valid_top1'))} %",
        f"from {distance['none']} to {distance['eq9-share-2']}, {distance['eq9-share-10']} "
        f"and {distance['eq9-share-30']}",
        f"{train_top1[0]}, {train_top1[1]} and {train_top1[2]} %",
        f"{format_change('eq9-share-10-ramp')}, and |ratio − 1| comes to {distance['eq9-share-10-ramp']}",
        f"{at_epoch_37[0]} against {at_epoch_37[1]} %",
        f"{ratios_at_3[0]} of the gradient with warm-up, {ratios_at_3[1]} without",
        f"{valid_at_3[0]} and {valid_at_3[1]} %",
        f"{format_pair(last_values('eq9-1', 'lcr_gradient_ratio'), 3)} at the end; {format_change('eq9-1')}",
        f"{format_pair(last_values('eq9-8', 'lcr_gradient_ratio'), 3)}; {format_change('eq9-8')}",
        f"{format_pair(last_values('eq9-share-2', 'lcr_weight'))} with 2 %, "
        f"{format_pair(last_values('eq9-share-10', 'lcr_weight'), 0)} with 10 %",
        f"{format_pair(last_values('eq9-share-10-ramp', 'lcr_weight'), 0)} with warm-up",
        "{:.1f}·10⁵ and {:.1f}·10⁸ with 30 %".format(*large_lambdas),
        f"block 7 ends at {block_7}",
        f"from {channel[0]} after the first epoch to {channel[1]}",
        f"|ratio − 1| goes from {raw[0]} to {raw[1]}",
        f"mean of {format_pair(last_values('eq8-raw-share-10', 'lcr_gradient_ratio'), 2)}",
        "{:.1f} % after epoch 47 to {:.1f} %".format(*collapse),
        f"end at {format_pair(last_values('eq9-share-10-weights', 'valid_top1'))} %",
        f"{values_at_epoch('eq9-share-10-weights', 37, 'valid_top1')[0]:.1f} % after epoch 37",
        f"the last three blocks alone {format_change('eq9-share-10-last-3')}",
        f"all blocks alike (β = 1) {format_change('eq9-share-10-beta-1')}",
        f"{format_change('paper-1e-3')} with a gradient ratio of "
        f"{format_pair(last_values('paper-1e-3', 'lcr_gradient_ratio'), 4)}",
        f"λ = 1 ends at {format_pair(last_values('paper-1', 'valid_top1'))} % with {paper_1_ratio}",
        f"teacher: {replace_hyphens(format_change('teacher-share-10').replace('+', '-'))}",
        f"{format_pair(noise_accuracy('teacher-share-10'))} against {format_pair(noise_accuracy('none'))} %",
        f"own strength: {format_change('official')}, with a gradient ratio of {official_ratio}",
        f"same teacher: {format_change('distill')} ({format_differences('distill')} by seed)",
        f"only {', '.join(f'`{variant}`' for variant in significant)} exclude 0",
        f"{noise_loss['none']} points without LCR, {noise_loss['eq9-share-2']} with 2 %",
        f"{noise_loss['teacher-share-10']} with the teacher",
    ):
        yield "paper/docs/LOG.md", text
    *levels, last_level = (
        f"{mean(last_values(v, 'valid_top1')):.1f}" for v in ("none", "eq9-1", "eq9-8", "eq9-share-10")
    )
    yield "paper/docs/claims.md", f"{', '.join(levels)} and {last_level} for λ = 0, 1, 8"
    yield (
        "paper/docs/claims.md",
        f"is {distance['eq9-share-10']} with a gradient ratio of 10 % and {distance['none']} without",
    )


def screening() -> Iterator[Passage]:
    """Yield the figures of the first screening of LCR variants."""
    yield from screen_sentences()
    for row in screen_rows():
        yield "paper/docs/LOG.md", row


PASSAGES = [screening]
