"""Figures that docs/corruptions.md quotes about errors of trained networks on corrupted images."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from lcrbnn.evaluation.robustness.mce import summarize_errors
from lcrbnn.evaluation.robustness.robustness_table import SUMMARY_TITLES
from paper.figures import Passage
from paper.figures.record_values import format_mean_std, read_bench_metrics, read_runs, replace_hyphens

VARIANTS = ("none", "default")
HEADS = ("as trained", "refit on clean", "refit on corrupted")
DOCUMENT = "docs/corruptions.md"


class RobustnessStudy:
    """The robustness records of two variants, paired by seed. A third variant can serve as a reference."""

    def __init__(self, name: str, num_seeds: int, heads: tuple[str, ...], image_size: int, reference: str = "") -> None:
        """Read the records of seeds 0, 1, ... of each variant."""
        self.name, self.heads, self.image_size = name, heads, image_size
        self.variants = [f"{name}/{variant}" for variant in VARIANTS]
        seeds = ({reference: 3} if reference else {}) | dict.fromkeys(self.variants, num_seeds)
        self.records: dict[str, list[dict[str, Any]]] = {
            variant: read_runs(f"robust/{variant}", count) for variant, count in seeds.items()
        }

    def compute_errors(self, variant: str, head: str) -> dict[str, list[float]]:
        """Return a dictionary from the title of a summary error to its values in percent, one per seed."""
        metrics = [record["figures"] for record in self.records[variant]]
        summaries = [summarize_errors(m["errors"][head], m["clean"][head], self.image_size) for m in metrics]
        rows = {title: [getattr(s, field) for s in summaries] for field, title in SUMMARY_TITLES.items()}
        clean = {"clean": [m["clean"][head] for m in metrics]}
        return clean | {title: values for title, values in rows.items() if None not in values}

    def compute_corruption_errors(self, variant: str, corruption: str) -> list[float]:
        """Return the error under one corruption, averaged over severities, one value per seed."""
        return [statistics.fmean(record["figures"]["errors"][HEADS[0]][corruption]) for record in self.records[variant]]

    def compare_errors(self, head: str, title: str) -> PairedDifference:
        """Return the paired difference of a summary error between the two variants."""
        without, with_lcr = (self.compute_errors(variant, head)[title] for variant in self.variants)
        return compare_paired(without, with_lcr)

    def compare_corruption(self, corruption: str) -> PairedDifference:
        """Return the paired difference of the error under one corruption between the two variants."""
        without, with_lcr = (self.compute_corruption_errors(variant, corruption) for variant in self.variants)
        return compare_paired(without, with_lcr)

    def find_significant_corruptions(self) -> list[str]:
        """Return the corruptions under which the interval of the difference excludes 0."""
        return [corruption for corruption in CORRUPTIONS if self.compare_corruption(corruption).is_significant]

    def compute_added_errors(self) -> dict[str, list[float]]:
        """Return how much larger the error is on corrupted than on clean images.

        The result has one value per variant and seed.
        """
        errors = {variant: self.compute_errors(variant, HEADS[0]) for variant in self.records}
        return {
            variant: [corrupted - clean for corrupted, clean in zip(rows["mean of 15"], rows["clean"], strict=True)]
            for variant, rows in errors.items()
        }

    def compare_added_errors(self) -> PairedDifference:
        """Return the paired difference of the added error between the two variants."""
        added = self.compute_added_errors()
        return compare_paired(*(added[variant] for variant in self.variants))


CIFAR = RobustnessStudy("cifar10-double", 5, HEADS, 32)
TINY = RobustnessStudy("tiny-irnet", 5, HEADS[:1], 64, reference="tiny-real/none")
REACT = RobustnessStudy("tiny-react18", 3, HEADS[:1], 64)
STUDIES = (CIFAR, TINY, REACT)


def mean_rows(study: RobustnessStudy) -> Iterator[Passage]:
    """Yield one row per summary error."""
    for head in study.heads:
        for title in study.compute_errors(study.variants[0], head):
            cells = [format_mean_std(study.compute_errors(variant, head)[title]) for variant in study.records]
            titles = [head, title] if len(study.heads) > 1 else [title]
            difference = replace_hyphens(study.compare_errors(head, title))
            yield DOCUMENT, f"| {' | '.join([*titles, *cells, difference])} |"


def corruption_rows(study: RobustnessStudy) -> Iterator[Passage]:
    """Yield one row per corruption."""
    for name in CORRUPTIONS:
        means = [f"{statistics.fmean(study.compute_corruption_errors(v, name)):.1f}" for v in study.records]
        yield DOCUMENT, f"| {' | '.join([name, *means, replace_hyphens(study.compare_corruption(name))])} |"


def added_error_row(study: RobustnessStudy) -> Passage:
    """Return the row with the error that corruptions add to the clean error."""
    cells = map(format_mean_std, study.compute_added_errors().values())
    difference = replace_hyphens(study.compare_added_errors())
    return DOCUMENT, f"| error added by corruption | {' | '.join(cells)} | {difference} |"


def first_pairs() -> Iterator[Passage]:
    """Yield the result of the first three pairs on Tiny-ImageNet."""
    difference = RobustnessStudy("tiny-irnet", 3, HEADS[:1], 64).compare_errors(HEADS[0], "mean of 15")
    yield DOCUMENT, f"had {replace_hyphens(difference)} in the mean of 15"


def reactnet() -> Iterator[Passage]:
    """Yield the number of images by which clean errors differ between these records and the training records."""
    yield DOCUMENT, f"within {count_differing_images(REACT)} images of 10,000"


def count_differing_images(study: RobustnessStudy) -> int:
    """Return for how many images the clean errors differ at most between robustness and training records."""
    differences = [
        abs(100 - top1 - record["figures"]["clean"][HEADS[0]])
        for variant in study.variants
        for record, trained in zip(study.records[variant], read_runs(variant, len(study.records[variant])), strict=True)
        for top1 in [trained["test_results"][0]["top1"]]
    ]
    return round(max(differences) * 100)


def cifar10() -> Iterator[Passage]:
    """Yield the detectable difference between the variants on CIFAR-10."""
    detectable = CIFAR.compare_errors("refit on clean", "mean of 19, severity 5").detectable
    yield DOCUMENT, f"a true difference of {detectable:.1f} would have shown"


def tiny_imagenet() -> Iterator[Passage]:
    """Yield the differences between the variants on Tiny-ImageNet."""
    for title in ("mean of 15", "mean of 19", "clean", "mean of 19, severity 5"):
        yield DOCUMENT, replace_hyphens(TINY.compare_errors(HEADS[0], title))
    added = TINY.compute_added_errors()
    real, none = (statistics.fmean(added[variant]) for variant in ("tiny-real/none", "tiny-irnet/none"))
    yield DOCUMENT, f"({real:.2f} against {none:.2f} points)"
    react = statistics.fmean(REACT.compute_added_errors()["tiny-react18/none"])
    yield DOCUMENT, f"adds {react:.2f} points, more than to IR-Net ({none:.2f}) and to full precision ({real:.2f})"
    errors = [TINY.compute_errors(variant, HEADS[0]) for variant in ("tiny-irnet/none", "tiny-real/none")]
    clean, corrupted = (
        statistics.fmean(errors[0][title]) - statistics.fmean(errors[1][title]) for title in ("clean", "mean of 15")
    )
    yield DOCUMENT, f"{clean:.1f} points better on clean and {corrupted:.1f} on corrupted"


def durations() -> Iterator[Passage]:
    """Yield how long it takes to corrupt a test set."""
    gpu, cpu = (read_bench_metrics(f"corruptions-{device}") for device in ("h200", "cpu"))
    yield DOCUMENT, f"in {gpu['whole_s']:.0f} s on an H200"
    yield DOCUMENT, f"{cpu['whole_cpu_s']:.0f} s of one core"


def tables() -> Iterator[Passage]:
    """Yield the rows of all tables."""
    for study in STUDIES:
        yield from mean_rows(study)
        yield from corruption_rows(study)
    for study in (TINY, REACT):
        yield added_error_row(study)


PASSAGES = [tables, first_pairs, reactnet, cifar10, tiny_imagenet, durations]
