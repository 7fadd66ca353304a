"""Figures that docs/analysis.md quotes, with sign flips, sensitivity, attacks, spectral norms and operation counts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from lcrbnn.evaluation.analysis.analyze import SUMMARY_TITLES
from lcrbnn.evaluation.attacks.run_attacks import summarize_attacks
from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.evaluation.seed_groups import render_group_comparison
from paper.figures import Passage
from paper.figures.record_values import RESULTS, read_metrics, read_runs, replace_hyphens
from paper.tables.cost_table import compare_costs

VARIANTS = ("none", "default")
NUM_SEEDS = 5


def read_analysis_records() -> dict[str, list[dict[str, Any]]]:
    """Return the records of `lcrbnn analyze` by variant. Each variant has one record per seed."""
    return {variant: read_runs(f"analyze/cifar10-double/{variant}", NUM_SEEDS) for variant in VARIANTS}


def read_summaries() -> dict[str, dict[int, dict[str, float]]]:
    """Return the summary of each analysis record, by variant and seed."""
    return {
        variant: {seed: record["figures"]["summary"] for seed, record in enumerate(records)}
        for variant, records in read_analysis_records().items()
    }


def read_attack_metrics(variant: str) -> dict[int, dict[str, Any]]:
    """Return the accuracies under attack, by seed."""
    return {
        seed: record["figures"] for seed, record in enumerate(read_runs(f"attack/cifar10-double/{variant}", NUM_SEEDS))
    }


def _render_comparison(groups: Mapping[str, Mapping[int, Mapping[str, float]]], titles: Mapping[str, str]) -> str:
    lines = render_group_comparison(groups, titles).splitlines()
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def analysis_table() -> Iterator[Passage]:
    """Yield the table of all measures."""
    yield "docs/analysis.md", _render_comparison(read_summaries(), SUMMARY_TITLES)


def sign_flips() -> Iterator[Passage]:
    """Yield which fractions of activations change their sign under noise and between two images."""
    summaries = read_summaries()

    def format_means(measure: str, decimals: int) -> str:
        means = [statistics.fmean(summary[measure] for summary in summaries[v].values()) for v in VARIANTS]
        return " to ".join(f"{mean:.{decimals}f}" for mean in means)

    yield "paper/docs/LOG.md", f"Sign flips fall from {format_means('flips_0.08', 1)} % under noise of 0.08"
    yield "paper/docs/LOG.md", f"signs that differ between two images fall from {format_means('flips_pairs', 1)} %"
    yield "paper/docs/LOG.md", f"off-diagonal cosine {format_means('cosine', 2).replace('0.', '.')}"
    flips = [
        statistics.fmean(100 * record["figures"]["flips"]["0.08"]["layer3.2.conv1"] for record in records)
        for records in read_analysis_records().values()
    ]
    yield "paper/docs/LOG.md", "{:.1f} to {:.1f} % at the input of its fifth convolution".format(*flips)


def attack_table() -> Iterator[Passage]:
    """Yield the table of accuracies under attack."""
    summaries = {
        variant: {seed: summarize_attacks(metrics) for seed, metrics in read_attack_metrics(variant).items()}
        for variant in VARIANTS
    }
    yield "docs/analysis.md", _render_comparison(summaries, {name: name for name in summaries["none"][0]})


def attacks_on_binary_networks() -> Iterator[Passage]:
    """Yield the accuracies of the binary networks if each image gets its strongest attack."""
    smallest_eps = {v: [m["0.5/255"] for m in read_attack_metrics(v).values()] for v in VARIANTS}
    worst = [[metrics["worst"] for metrics in smallest_eps[variant]] for variant in VARIANTS]
    without, with_lcr = (statistics.fmean(values) for values in worst)
    gain = replace_hyphens(compare_paired(*worst))
    yield "docs/analysis.md", f"from {without:.2f} to {with_lcr:.2f} % ({gain})"
    with_and_without = f"{with_lcr:.2f} instead of {without:.2f} %"
    yield "README.md", f"{with_and_without} of 1,000 images survive all attacks at 0.5/255"
    yield "paper/docs/claims.md", f"{with_and_without} survive all attacks at 0.5/255, {gain}"
    black_box_only = [metrics["black_box_only"] for runs in smallest_eps.values() for metrics in runs]
    yield "docs/analysis.md", f"{min(black_box_only)} to {max(black_box_only)} images per network"
    masked = smallest_eps["default"][4]
    yield "docs/analysis.md", f"{masked['best_black_box']:.1f} against {masked['best_gradient']:.1f} %"


def attacks_on_full_precision() -> Iterator[Passage]:
    """Yield the accuracy of the full-precision teacher under attack."""
    metrics = read_metrics(RESULTS / "attack" / "cifar10-double" / "teacher" / "seed-0.json")
    yield "docs/analysis.md", f"({metrics['2/255']['clean']:.1f} % of these images are classified correctly)"
    worst = [metrics[eps]["worst"] for eps in ("0.5/255", "2/255", "8/255")]
    yield "docs/analysis.md", "{:.1f} % at 0.5/255, {:.1f} % at 2/255 and {:.1f} % at 8/255".format(*worst)


def norm_intervals() -> Iterator[Passage]:
    """Yield how wide the intervals of the convolutions' spectral norms are."""
    widths = [
        100 * (norm["high"] / norm["low"] - 1)
        for records in read_analysis_records().values()
        for record in records
        for norm in record["figures"]["norms"].values()
        if norm["steps"]
    ]
    yield "docs/analysis.md", f"the ends are {min(widths):.2f} to {max(widths):.1f} % apart"


def cost_table() -> Iterator[Passage]:
    """Yield the rows of the paper's cost table next to our counts."""
    for row, cost in compare_costs():
        yield "docs/analysis.md", f"| {row.title} |…| {cost.bit_operations:,} |…| {cost.flops:,} |"


PASSAGES = [
    analysis_table,
    sign_flips,
    attack_table,
    attacks_on_binary_networks,
    attacks_on_full_precision,
    norm_intervals,
    cost_table,
]
