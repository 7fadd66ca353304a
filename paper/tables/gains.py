"""The gain in accuracy from LCR for every variant of the tables: paired by seed, next to the paper's gain."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from lcrbnn.evaluation.paired_difference import PairedDifference
from lcrbnn.evaluation.table_cells import NO_VALUE, compare_with_zero, format_markdown_table, use_minus_sign
from paper.tables.table_spec import PaperTable, PaperTables, TableRow, TableVariant, mark_fault, read_top1

COLUMNS = ("CIFAR-10 unless stated", "LCR variant", "pairs", "without", "with", "gain, 95 %", "paper's gain")


class Gain(NamedTuple):
    """The comparison of a variant with LCR and its baseline."""

    table: str
    row: str
    difference: PairedDifference
    paper_gain: float | None
    without: float  # mean test accuracy in percent over the paired seeds
    with_lcr: float


def compute_gains(paper_tables: PaperTables, variant: TableVariant, num_seeds: int) -> dict[int, float]:
    """Return the differences in test accuracy between a variant and its baseline, by seed."""
    top1 = read_top1(paper_tables.read_runs(variant, num_seeds))
    baseline_top1 = read_top1(paper_tables.read_baseline_runs(variant, num_seeds))
    return {seed: top1[seed] - baseline_top1[seed] for seed in top1 if seed in baseline_top1}


def find_paper_gain(paper_tables: PaperTables, table: PaperTable, row: TableRow) -> float | None:
    """Return the gain in the paper: its value of a row minus that of the baseline. Return None if one is missing."""
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
            without, with_lcr = (
                statistics.fmean(read_top1(side)[seed] for seed in differences) for side in (baseline_runs, runs)
            )
            paper_gain = find_paper_gain(paper_tables, table, row)
            gains.append(Gain(table.title, mark_fault(row.title, runs), difference, paper_gain, without, with_lcr))
            seen_variants.add(row.variant)
    return gains


def _uses_lcr(paper_tables: PaperTables, row: TableRow) -> bool:
    variants = paper_tables.get_plan(row.variant.study).variants
    return row.minus_gain_of is None and row.variant.name in variants and variants[row.variant.name].uses_lcr


def render_gains(gains: list[Gain]) -> str:
    """Return a Markdown table with one row per gain. Significant gains are bold."""
    lines = []
    for i, gain in enumerate(gains):
        interval = use_minus_sign(str(gain.difference))
        lines.append(
            [
                gain.table if i == 0 or gain.table != gains[i - 1].table else "",
                gain.row.removeprefix("with LCR, "),
                str(gain.difference.num_pairs),
                f"{gain.without:.2f}",
                f"{gain.with_lcr:.2f}",
                f"**{interval}**" if gain.difference.is_significant else interval,
                NO_VALUE if gain.paper_gain is None else use_minus_sign(f"{gain.paper_gain:+.1f}"),
            ]
        )
    return format_markdown_table(COLUMNS, lines)
