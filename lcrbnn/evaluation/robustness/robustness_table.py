"""Format robustness as text, with one table per group of runs and the paired differences between groups."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS, SEVERITIES
from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.evaluation.robustness.corruption_record import AS_TRAINED, CorruptionEvaluator
from lcrbnn.evaluation.robustness.mce import CorruptionSummary, summarize_errors

SUMMARY_TITLES = {
    "main": "mean of 15",
    "all": "mean of 19",
    "main_worst": "mean of 15, severity 5",
    "all_worst": "mean of 19, severity 5",
    "mce": "mCE (AlexNet 100)",
    "relative_mce": "relative mCE",
}


def render_group_table(title: str, evaluators: Sequence[CorruptionEvaluator]) -> str:
    """Return a table of errors in percent, averaged over the runs.

    It has one row per corruption, then rows of means.
    """
    lines = []
    for head in evaluators[0].errors:
        runs_note = "" if len(evaluators) == 1 else f", mean of {len(evaluators)} runs"
        lines.append(f"{title}, {head}{runs_note}: error in %")
        lines.append(f"{'':<24}" + "".join(f"{s:>8}" for s in SEVERITIES) + f"{'mean':>8}")
        for name in [n for n in CORRUPTIONS if n in evaluators[0].errors[head]]:
            values = [
                statistics.fmean(column) for column in zip(*(r.errors[head][name] for r in evaluators), strict=True)
            ]
            suffix = "" if CORRUPTIONS[name].is_main else " (extra)"
            cells = "".join(f"{v:8.2f}" for v in (*values, statistics.fmean(values)))
            lines.append(f"{name + suffix:<24}{cells}")
        for name, values in _collect_mean_errors(evaluators, head).items():
            std = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            lines.append(f"{name:<24}{statistics.fmean(values):8.2f}{std}")
    return "\n".join(lines)


def _collect_mean_errors(evaluators: Sequence[CorruptionEvaluator], head: str) -> dict[str, list[float]]:
    """Return a dictionary from row titles to values (one per run): the clean error and all available mean errors."""
    errors_by_title = {"clean": [evaluator.clean_errors[head] for evaluator in evaluators]}
    summaries: list[CorruptionSummary] = [
        summarize_errors(r.errors[head], r.clean_errors[head], r.dataset.image_size) for r in evaluators
    ]
    for field, title in SUMMARY_TITLES.items():
        values = [getattr(summary, field) for summary in summaries]
        if None not in values:
            errors_by_title[title] = values
    return errors_by_title


def render_group_differences(groups: Mapping[str, Sequence[CorruptionEvaluator]]) -> Iterator[str]:
    """Yield lines with the paired error differences between the first group and each other group, with 95 % intervals.

    A group is left out if its seeds differ from those of the first group.
    """
    baseline, *other_groups = groups.items()
    seeds = [evaluator.spec.seed for evaluator in baseline[1]]
    for name, evaluators in other_groups:
        if [evaluator.spec.seed for evaluator in evaluators] != seeds or len(seeds) < 2:
            continue
        yield f"{name} minus {baseline[0]}, {len(seeds)} pairs, 95 %:"
        for head in evaluators[0].errors:
            group_errors, baseline_errors = (
                _collect_mean_errors(evaluators, head),
                _collect_mean_errors(baseline[1], head),
            )
            for title in group_errors:
                difference = compare_paired(baseline_errors[title], group_errors[title])
                significance_mark = " *" if difference.is_significant else ""
                yield f"  {head if head != AS_TRAINED else '':<20}{title:<24}{difference}{significance_mark}"
