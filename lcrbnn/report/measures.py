"""Compare numbers of several groups by means with intervals, and by differences that are paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from lcrbnn.evaluation.table_cells import NO_VALUE, compare_with_zero
from lcrbnn.report.elements import Axis, CommandHint, Dot, DotChart, DotSeries, Element, Table
from lcrbnn.report.run_groups import ReportRun, RunGroup

ValuesBySeed = Mapping[int, float]
# Function from a run to a dictionary: name of a number (for example, an attack) -> number
NamedValuesGetter = Callable[[ReportRun], Mapping[str, float]]
INTERVAL_LABEL = "[95\u00a0%]"
STAR_EXPLANATION = "* marks a difference whose interval excludes 0."


class Measure(NamedTuple):
    """A number that each run has, with a row title and a number format."""

    title: str
    get_value: Callable[[ReportRun], float | None]
    number_format: str = ".2f"


def make_mean_dot(values: ValuesBySeed) -> Dot | None:
    """Return the mean and its 95 % interval as a dot, or None without values. A single value has no interval."""
    if not values:
        return None
    numbers = list(values.values())
    interval = compare_with_zero(numbers)
    mean = statistics.fmean(numbers)
    return Dot(mean) if interval is None else Dot(mean, interval.low, interval.high)


def compute_difference(values: ValuesBySeed, baseline: ValuesBySeed) -> PairedDifference | None:
    """Return the differences values - baseline for the common seeds. With fewer than two common seeds, return None."""
    seeds = sorted(values.keys() & baseline.keys())
    return compare_paired([baseline[s] for s in seeds], [values[s] for s in seeds]) if len(seeds) > 1 else None


def make_difference_dot(values: ValuesBySeed, baseline: ValuesBySeed) -> Dot | None:
    """Return the mean paired difference as a dot. A single pair has no interval."""
    difference = compute_difference(values, baseline)
    if difference is not None:
        return Dot(difference.mean, difference.low, difference.high)
    seeds = values.keys() & baseline.keys()
    return Dot(next(values[s] - baseline[s] for s in seeds)) if len(seeds) == 1 else None


def make_comparison_table(title: str, groups: Sequence[RunGroup], measures: Sequence[Measure]) -> Table | None:
    """Return a table with one row per measure, with the mean of each group and its difference to the first group.

    Rows without values are left out. If some runs lack a value, the row title states the number of seeds.
    """
    columns = ["", *(f"{group.name}, mean {INTERVAL_LABEL}" for group in groups)]
    columns += [f"{group.name} − {groups[0].name} {INTERVAL_LABEL}" for group in groups[1:]]
    rows = []
    for measure in measures:
        values = [group.values_by_seed(measure.get_value) for group in groups]
        if any(values):
            cells = [
                measure.title + _format_seed_counts(groups, values),
                *(_format_mean(group_values, measure.number_format) for group_values in values),
            ]
            rows.append(
                (
                    *cells,
                    *(
                        _format_difference(group_values, values[0], measure.number_format)
                        for group_values in values[1:]
                    ),
                )
            )
    return Table(title, tuple(columns), tuple(rows)) if rows else None


def _format_seed_counts(groups: Sequence[RunGroup], values: Sequence[ValuesBySeed]) -> str:
    counts = [(len(group_values), len(group.runs)) for group_values, group in zip(values, groups, strict=True)]
    if all(measured == total for measured, total in counts):
        return ""
    return f" ({', '.join(dict.fromkeys(f'{measured} of {total}' for measured, total in counts))} seeds)"


def _format_mean(values: ValuesBySeed, number_format: str) -> str:
    dot = make_mean_dot(values)
    if dot is None:
        return NO_VALUE
    if dot.low is None:
        return _format_minus_signs(f"{dot.value:{number_format}}")
    return _format_minus_signs(f"{dot.value:{number_format}} [{dot.low:{number_format}}, {dot.high:{number_format}}]")


def _format_difference(values: ValuesBySeed, baseline: ValuesBySeed, number_format: str) -> str:
    difference = compute_difference(values, baseline)
    pairs = len(values.keys() & baseline.keys())
    pair_count_note = f" ({pairs} pair{'s' if pairs > 1 else ''})" if pairs < max(len(values), len(baseline)) else ""
    if difference is None:
        dot = make_difference_dot(values, baseline)
        return NO_VALUE if dot is None else _format_minus_signs(f"{dot.value:+{number_format}}") + pair_count_note
    interval = f"[{difference.low:+{number_format}}, {difference.high:+{number_format}}]"
    star = " *" if difference.is_significant else ""
    return _format_minus_signs(f"{difference.mean:+{number_format}} {interval}{star}") + pair_count_note


def _format_minus_signs(text: str) -> str:
    """Return the text with minus signs in place of hyphens. Non-breaking spaces keep an interval on one line."""
    head, bracket, tail = text.replace("-", "−").partition("[")
    return head + bracket + tail.replace(" ", "\u00a0")


def make_mean_series(groups: Sequence[RunGroup], rows: Sequence[str], get_values: NamedValuesGetter) -> list[DotSeries]:
    """Return one series per group. Each dot is the mean of a row over the runs of the group."""
    return [
        DotSeries(
            group.name,
            index,
            tuple(make_mean_dot(group.values_by_seed(_value_getter(get_values, row))) for row in rows),
        )
        for index, group in enumerate(groups)
    ]


def make_difference_series(
    groups: Sequence[RunGroup], rows: Sequence[str], get_values: NamedValuesGetter
) -> list[DotSeries]:
    """Return one series for each group except the first.

    Each dot is the paired difference of a row to the first group.
    """
    series = []
    for index, group in enumerate(groups[1:], 1):
        dots = [
            make_difference_dot(
                group.values_by_seed(_value_getter(get_values, row)),
                groups[0].values_by_seed(_value_getter(get_values, row)),
            )
            for row in rows
        ]
        series.append(DotSeries(f"{group.name} − {groups[0].name}", index, tuple(dots)))
    return series


def make_mean_chart(
    groups: Sequence[RunGroup],
    title: str,
    description: str,
    axis: Axis,
    row_label: str,
    get_values: NamedValuesGetter,
    *,
    reference_value: float | None = None,
    is_log: bool = False,
) -> list[Element]:
    """Return a list with one chart of the means over the runs of each group. Without values the list is empty."""
    rows = tuple(collect_names(groups, get_values))
    series = tuple(make_mean_series(groups, rows, get_values))
    return [DotChart(title, description, axis, rows, row_label, series, reference_value, is_log)] if rows else []


def make_difference_chart(
    groups: Sequence[RunGroup], title: str, description: str, axis: Axis, row_label: str, get_values: NamedValuesGetter
) -> list[Element]:
    """Return a list with one chart of the differences to the first group. Without differences the list is empty."""
    rows = tuple(collect_names(groups, get_values))
    series = tuple(s for s in make_difference_series(groups, rows, get_values) if any(s.dots))
    return [DotChart(title, description, axis, rows, row_label, series, reference_value=0.0)] if series else []


def _value_getter(get_values: NamedValuesGetter, row: str) -> Callable[[ReportRun], float | None]:
    return lambda run: get_values(run).get(row)


def hint_missing_measurements(groups: Sequence[RunGroup], kind: str, command: str) -> list[Element]:
    """Return a hint with the command if some runs have no measurement of this kind. Otherwise return an empty list."""
    names = [group.name for group in groups if any(kind not in run.measurements for run in group.runs.values())]
    if not names:
        return []
    return [CommandHint(f"Not measured in all runs of {', '.join(names)}. This command measures the others:", command)]


def collect_names(groups: Sequence[RunGroup], get_values: Callable[[ReportRun], Mapping[str, object]]) -> list[str]:
    """Return the names that occur in any run, in the order in which they first occur."""
    return list(dict.fromkeys(name for group in groups for run in group.runs.values() for name in get_values(run)))
