"""Compute the accuracy gain from LCR for every variant of the tables, paired by seed, next to the paper's gain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from lcrbnn.evaluation.mean_difference import (
    MeanDifference,
    adjust_holm,
    compare_welch,
    correlate_pairs,
    pool_differences,
)
from lcrbnn.evaluation.paired_difference import PairedDifference
from lcrbnn.evaluation.table_cells import NO_VALUE, compare_with_zero, format_markdown_table, use_minus_sign
from paper.tables.table_spec import (
    FAULT_MARK,
    PaperTable,
    PaperTables,
    TableRow,
    TableVariant,
    has_faulty_run,
    mark_fault,
    read_top1,
)

COLUMNS = (
    "CIFAR-10 unless stated",
    "LCR variant",
    "pairs",
    "without",
    "with",
    "gain, paired 95 %",
    "Welch's 95 %",
    "correlation",
    "p, Holm",
    "paper's gain",
)
POOL_COLUMNS = ("pooled", "pairs", "networks", "gain, 95 %", "detectable", "paper's gain", "is it inside?")
SIGNIFICANCE_LEVEL = 0.05


class Gain(NamedTuple):
    """The comparison of a variant with LCR and its baseline."""

    table: str
    row: str
    difference: PairedDifference
    paper_gain: float | None
    without: tuple[float, ...]  # test accuracy in percent, one value per paired seed
    with_lcr: tuple[float, ...]
    pool: str
    is_faulty: bool  # whether a run was trained with the faulty kernel of the power iteration

    @property
    def differences(self) -> list[float]:
        """Return the gain of each pair in percentage points."""
        return [with_lcr - without for without, with_lcr in zip(self.without, self.with_lcr, strict=True)]

    @property
    def welch(self) -> MeanDifference:
        """Return the gain with the interval for independent runs."""
        return compare_welch(self.without, self.with_lcr)

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value of the paired comparison."""
        num_pairs = self.difference.num_pairs
        return MeanDifference(self.difference.mean, self.difference.std / math.sqrt(num_pairs), num_pairs - 1).p_value


def compute_gains(paper_tables: PaperTables, variant: TableVariant, num_seeds: int) -> dict[int, float]:
    """Return the differences in test accuracy between a variant and its baseline, by seed."""
    top1 = read_top1(paper_tables.read_runs(variant, num_seeds))
    baseline_top1 = read_top1(paper_tables.read_baseline_runs(variant, num_seeds))
    return {seed: top1[seed] - baseline_top1[seed] for seed in top1 if seed in baseline_top1}


def find_paper_gain(paper_tables: PaperTables, table: PaperTable, row: TableRow) -> float | None:
    """Return the paper's value of a row minus that of the baseline, or None if one of the values is missing."""
    baseline = paper_tables.get_baseline(row.variant)
    baseline_values = (r.paper_value for r in table.rows if r.variant == baseline and r.minus_gain_of is None)
    baseline_value = next(baseline_values, None)
    return None if baseline_value is None or row.paper_value is None else row.paper_value - baseline_value


def compute_all_gains(paper_tables: PaperTables) -> list[Gain]:
    """Return the gain of each variant with LCR and at least two pairs, in the order of the tables.

    No variant occurs twice.
    """
    seen_variants, gains = set(), []
    for table in paper_tables.tables.values():
        for row in () if table.pairs else table.rows:
            if row.variant in seen_variants or not _uses_lcr(paper_tables, row):
                continue
            differences = compute_gains(paper_tables, row.variant, row.num_seeds)
            difference = compare_with_zero(list(differences.values()))
            if difference is None:
                continue
            runs = paper_tables.read_runs(row.variant, row.num_seeds)
            baseline_runs = paper_tables.read_baseline_runs(row.variant, row.num_seeds)
            without, with_lcr = (tuple(read_top1(side)[seed] for seed in differences) for side in (baseline_runs, runs))
            paper_gain, title = find_paper_gain(paper_tables, table, row), mark_fault(row.title, runs)
            is_faulty = has_faulty_run(runs)
            gains.append(Gain(table.title, title, difference, paper_gain, without, with_lcr, row.pool, is_faulty))
            seen_variants.add(row.variant)
    return gains


def _uses_lcr(paper_tables: PaperTables, row: TableRow) -> bool:
    variants = paper_tables.get_plan(row.variant.study).variants
    return row.minus_gain_of is None and row.variant.name in variants and variants[row.variant.name].uses_lcr


def render_gains(gains: Sequence[Gain]) -> str:
    """Return a Markdown table with one row per gain. A gain is bold if it is significant after Holm's correction."""
    adjusted_p_values = adjust_holm([gain.p_value for gain in gains])
    lines = []
    for i, (gain, p_value) in enumerate(zip(gains, adjusted_p_values, strict=True)):
        interval, correlation = use_minus_sign(str(gain.difference)), correlate_pairs(gain.without, gain.with_lcr)
        lines.append(
            [
                gain.table if i == 0 or gain.table != gains[i - 1].table else "",
                gain.row.removeprefix("with LCR, "),
                str(gain.difference.num_pairs),
                f"{statistics.fmean(gain.without):.2f}",
                f"{statistics.fmean(gain.with_lcr):.2f}",
                f"**{interval}**" if p_value < SIGNIFICANCE_LEVEL else interval,
                use_minus_sign("[{:+.2f}, {:+.2f}]".format(*gain.welch.interval)),
                NO_VALUE if math.isnan(correlation) else use_minus_sign(f"{correlation:+.2f}"),
                f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001",
                _format_paper_gain(gain.paper_gain),
            ]
        )
    return format_markdown_table(COLUMNS, lines)


class PooledGain(NamedTuple):
    """The mean gain over the pairs of several networks."""

    title: str
    num_networks: int
    num_pairs: int
    difference: MeanDifference
    paper_gain: float | None  # mean of the paper's gains, with the same weights; None unless the paper has all gains


def pool_gains(gains: Sequence[Gain]) -> list[PooledGain]:
    """Return one estimate per pool. Runs with the faulty kernel have a separate pool."""
    pools: dict[tuple[str, bool], list[Gain]] = {}
    for gain in gains:
        if gain.pool:
            pools.setdefault((gain.pool, gain.is_faulty), []).append(gain)
    pooled_gains = []
    for (name, is_faulty), members in pools.items():
        paper_gains = [member.paper_gain for member in members for _ in member.differences]
        known_paper_gains = [paper_gain for paper_gain in paper_gains if paper_gain is not None]
        pooled_gains.append(
            PooledGain(
                name + FAULT_MARK if is_faulty else name,
                len(members),
                len(paper_gains),
                pool_differences([member.differences for member in members]),
                statistics.fmean(known_paper_gains) if len(known_paper_gains) == len(paper_gains) else None,
            )
        )
    return pooled_gains


def render_pooled_gains(pooled_gains: Sequence[PooledGain]) -> str:
    """Return a Markdown table with one row per pooled estimate."""
    lines = []
    for pooled in pooled_gains:
        low, high = pooled.difference.interval
        is_inside = NO_VALUE if pooled.paper_gain is None else "yes" if low <= pooled.paper_gain <= high else "no"
        lines.append(
            [
                pooled.title,
                str(pooled.num_pairs),
                str(pooled.num_networks),
                use_minus_sign(str(pooled.difference)),
                f"{pooled.difference.detectable:.2f}",
                _format_paper_gain(pooled.paper_gain, ".2f"),
                is_inside,
            ]
        )
    return format_markdown_table(POOL_COLUMNS, lines)


def _format_paper_gain(paper_gain: float | None, format_spec: str = ".1f") -> str:
    return NO_VALUE if paper_gain is None else use_minus_sign(f"{paper_gain:+{format_spec}}")
