"""Figures of docs/evidence.md, the page of questions and answers about LCR."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from paper.figures import Passage
from paper.figures.record_values import mean_ratio_distance, read_last_epoch, read_test_accuracy, replace_hyphens
from paper.tables.gains import Gain, compute_all_gains, pool_gains
from paper.tables.render_tables import TABLE_SPEC
from paper.tables.table_spec import read_table_spec

PAGE = "docs/evidence.md"


def find_gain(gains: list[Gain], table: str, row: str) -> Gain:
    """Return the gain whose table and row start with these texts."""
    return next(gain for gain in gains if gain.table.startswith(table) and gain.row.startswith(row))


def accuracy() -> Iterator[Passage]:
    """Yield the gains in accuracy with their intervals, n and smallest detectable gain."""
    gains = compute_all_gains(read_table_spec(TABLE_SPEC))
    pooled = next(pooled for pooled in pool_gains(gains) if pooled.title.endswith("†"))
    assert pooled.paper_gain is not None
    yield PAGE, f"{pooled.num_pairs} pairs"
    yield PAGE, f"{replace_hyphens(pooled.difference)}; detectable {pooled.difference.detectable:.2f}"
    yield PAGE, f"the paper has {pooled.paper_gain:+.2f}"
    for table in ("Tiny-ImageNet, ResNet-18", "Tiny-ImageNet, ReActNet"):
        gain = find_gain(gains, table, "")
        yield PAGE, f"{gain.difference.num_pairs} pairs"
        yield PAGE, f"{replace_hyphens(gain.difference)}; detectable {gain.difference.detectable:.2f}"
    correlations = [
        statistics.correlation(g.without, g.with_lcr) for g in gains if g.row.startswith("with LCR") and g.pool
    ]
    yield PAGE, replace_hyphens(f"{min(correlations):+.2f} to {max(correlations):+.2f}")


def baselines() -> Iterator[Passage]:
    """Yield the accuracies without LCR, next to the published ones."""
    top1 = statistics.fmean(read_test_accuracy("cifar10-double/none", 8))
    yield PAGE, f"{top1:.2f} % (the last epoch) instead of 86.5 % (the best epoch)"
    real = statistics.fmean(read_test_accuracy("cifar10-real/none", 3))
    yield PAGE, f"{real:.2f} %"


def ratios() -> Iterator[Passage]:
    """Yield the mean distance of the ratios from 1, with and without LCR."""
    distances = [
        statistics.fmean(map(mean_ratio_distance, read_last_epoch(f"cifar10-double/{name}", "sigma_ratios", 8)))
        for name in ("default", "none")
    ]
    yield PAGE, "{:.3f} instead of {:.3f}".format(*distances)


def literal_form() -> Iterator[Passage]:
    """Yield the accuracy of the variant `paper` at the lambda of the paper."""
    names = ("lambda-half", "lambda-1", "lambda-2", "lambda-4", "lambda-8")
    top1 = [read_test_accuracy(f"cifar10-lambda-paper/{name}", 1)[0] for name in names]
    yield (
        PAGE,
        f"{min(top1):.0f} to {max(top1):.0f} % instead of {read_test_accuracy('cifar10-double/none', 1)[0]:.0f} %",
    )


def log_entry() -> Iterator[Passage]:
    """Yield the pooled estimate of the entry of 2026-11-19."""
    pooled = next(p for p in pool_gains(compute_all_gains(read_table_spec(TABLE_SPEC))) if p.title.endswith("†"))
    yield "paper/docs/LOG.md", f"{replace_hyphens(pooled.difference)} over {pooled.num_pairs} pairs"


PASSAGES = [accuracy, baselines, ratios, literal_form, log_entry]
