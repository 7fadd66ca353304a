"""Figures of the studies on Tiny-ImageNet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from lcrbnn.evaluation.student_t import student_t_quantile
from paper.figures import Passage
from paper.figures.record_values import (
    format_mean_std,
    join_differences,
    join_values,
    read_last_epoch,
    read_test_accuracy,
    replace_hyphens,
)

METRICS = ("top1", "top5")


def format_variant_row(title: str, variant: str, num_seeds: int) -> str:
    """Return the table cells of a variant: top-1 accuracy per seed, mean top-1, mean top-5."""
    top1, top5 = (read_test_accuracy(variant, num_seeds, metric) for metric in METRICS)
    return f"| {title} | {join_values(top1)} | {format_mean_std(top1)} | {format_mean_std(top5)} |"


def compare_rows(titles: dict[str, str]) -> Iterator[Passage]:
    """Yield one row per variant, with three seeds and the training accuracy."""
    for title, variant in titles.items():
        train_top1 = join_values(read_last_epoch(variant, "train_top1"))
        yield "paper/docs/LOG.md", f"{format_variant_row(title, variant, 3)} {train_top1} |"


def compare_ratios(plan: str, num_seeds: int = 3) -> Iterator[Passage]:
    """Yield σ_B/σ_F per block without and with LCR, averaged over seeds."""
    for variant in ("none", "default"):
        ratios = read_last_epoch(f"{plan}/{variant}", "sigma_ratios", num_seeds)
        means = join_values([statistics.fmean(block) for block in zip(*ratios, strict=True)])
        yield "paper/docs/LOG.md", " ".join(mean.removeprefix("0") for mean in means.split())


def compute_gains(plan: str, num_seeds: int = 3) -> list[str]:
    """Return the gains from LCR in top-1 and in top-5 accuracy, with intervals."""
    return [replace_hyphens(_compare_test_accuracy(plan, num_seeds, metric)) for metric in METRICS]


def _compare_test_accuracy(plan: str, num_seeds: int, metric: str) -> PairedDifference:
    without, with_lcr = (read_test_accuracy(f"{plan}/{v}", num_seeds, metric) for v in ("none", "default"))
    return compare_paired(without, with_lcr)


def _compare_train_accuracy(plan: str, num_seeds: int = 3) -> str:
    without, with_lcr = (read_last_epoch(f"{plan}/{v}", "train_top1", num_seeds) for v in ("none", "default"))
    return replace_hyphens(compare_paired(without, with_lcr))


def irnet() -> Iterator[Passage]:
    """Yield the results of IR-Net with all five seeds."""
    plan, num_seeds = "tiny-irnet", 5
    for title, variant in {"IR-Net": "none", "with LCR, `default`": "default"}.items():
        yield "paper/docs/LOG.md", format_variant_row(title, f"{plan}/{variant}", num_seeds)
    for metric, gain in zip(METRICS, compute_gains(plan, num_seeds), strict=True):
        pair = [read_test_accuracy(f"{plan}/{v}", num_seeds, metric) for v in ("none", "default")]
        yield "paper/docs/LOG.md", f"{gain} ({join_differences(*pair)})"
        yield "README.md", gain
        if metric == "top1":
            yield "paper/docs/claims.md", gain
    yield from compare_ratios(plan, num_seeds)
    yield "paper/docs/LOG.md", f"training accuracy is higher, {_compare_train_accuracy(plan, num_seeds)}."
    means = [statistics.fmean(read_test_accuracy(f"{plan}/{v}", num_seeds)) for v in ("none", "default")]
    yield "README.md", "{:.2f} % without and {:.2f} % with LCR".format(*means)


def irnet_first_pairs() -> Iterator[Passage]:
    """Yield the results of IR-Net with the first three seeds, and with the two seeds that followed."""
    yield from compare_rows(
        {"full precision": "tiny-real/none", "IR-Net": "tiny-irnet/none", "with LCR, `default`": "tiny-irnet/default"}
    )
    yield from compare_ratios("tiny-irnet")
    for gain in compute_gains("tiny-irnet"):
        yield "paper/docs/LOG.md", gain
    without, with_lcr = (read_test_accuracy(f"tiny-irnet/{v}", 5)[3:] for v in ("none", "default"))
    later_gains = [b - a for a, b in zip(without, with_lcr, strict=True)]
    yield "paper/docs/reproduce.md", f"three had {compute_gains('tiny-irnet')[0]}"
    yield "paper/docs/reproduce.md", "({:+.2f} and {:+.2f})".format(*later_gains)
    yield "paper/docs/LOG.md", f"The two new pairs have {statistics.fmean(later_gains):+.2f} in the mean"
    for metric in METRICS:
        pair = [read_test_accuracy(f"tiny-irnet/{v}", 3, metric) for v in ("none", "default")]
        yield "paper/docs/LOG.md", join_differences(*pair)
    yield "paper/docs/LOG.md", f"training accuracy is not lower, {_compare_train_accuracy('tiny-irnet')}."


def reactnet() -> Iterator[Passage]:
    """Yield the results of ReActNet's ResNet-18, and how far it is from full precision."""
    yield from compare_rows(
        {
            "first step, 32/1": "tiny-react18-first/none",
            "second step, 1/1": "tiny-react18/none",
            "with LCR, `default`": "tiny-react18/default",
        }
    )
    yield from compare_ratios("tiny-react18")
    top1_gain, top5_gain = compute_gains("tiny-react18")
    without, with_lcr = (read_test_accuracy(f"tiny-react18/{v}") for v in ("none", "default"))
    yield "paper/docs/LOG.md", f"in top-1, {top1_gain} ({join_differences(without, with_lcr)})"
    train_gain = _compare_train_accuracy("tiny-react18")
    yield "paper/docs/LOG.md", f"in top-5, {top5_gain}, in training accuracy {train_gain}."
    samples = [read_test_accuracy(variant) for variant in ("tiny-real/none", "tiny-react18/none")]
    real, binary = (statistics.fmean(sample) for sample in samples)
    real5, binary5 = (
        statistics.fmean(read_test_accuracy(variant, metric="top5"))
        for variant in ("tiny-real/none", "tiny-react18/none")
    )
    yield (
        "paper/docs/LOG.md",
        f"{binary:.2f} % beside {real:.2f} % in full precision, top-5 {binary5:.2f} beside {real5:.2f}",
    )
    # The interval is Welch's, because the two sets of runs are not paired. Its 3.97 degrees of freedom are rounded
    # down.
    standard_error = math.sqrt(sum(statistics.variance(sample) / len(sample) for sample in samples))
    half_width = student_t_quantile(0.975, 3) * standard_error
    yield "paper/docs/LOG.md", f"({replace_hyphens(f'{binary - real:+.2f}')} ± {half_width:.2f})"
    teacher_top1 = samples[0][0]
    yield "paper/docs/LOG.md", f"seed 0: {teacher_top1:.2f} % as the teacher of both steps"
    yield "paper/docs/claims.md", top1_gain
    yield "README.md", f"{binary:.2f} % with 1-bit weights and activations, {real:.2f} % in full precision"


PASSAGES = [irnet, irnet_first_pairs, reactnet]
