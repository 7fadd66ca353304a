"""Describe charts in words for screen readers, and convert charts to tables of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lcrbnn.report.elements import Chart, Dot, DotChart, HeatMap, Histogram, LineChart, Table
from lcrbnn.report.render.text import format_number


def describe_chart(chart: Chart) -> str:
    """Return a sentence about a chart, with its axes and the range of its numbers."""
    return f"{chart.description} {_DESCRIBERS[type(chart)](chart)}"


def tabulate_chart(chart: Chart) -> Table:
    """Return a table with all numbers of a chart."""
    return _TABULATORS[type(chart)](chart)


def _describe_lines(chart: LineChart) -> str:
    descriptions = [
        f"{line.name} changes from {format_number(line.y[0])} at {format_number(line.x[0])} "
        f"to {format_number(line.y[-1])} at {format_number(line.x[-1])}"
        for line in chart.lines
        if line.y
    ]
    return f"X axis: {chart.x.label}. Y axis: {chart.y.label}. {'; '.join(descriptions)}."


def _describe_dots(chart: DotChart) -> str:
    descriptions = []
    for series in chart.series:
        values = [(dot.value, row) for row, dot in zip(chart.rows, series.dots, strict=True) if dot is not None]
        if len(values) == 1:
            descriptions.append(f"{series.name}: {format_number(values[0][0])} ({values[0][1]})")
        elif values:
            (low, row_of_low), (high, row_of_high) = min(values), max(values)
            descriptions.append(
                f"{series.name}: from {format_number(low)} ({row_of_low}) to {format_number(high)} ({row_of_high})"
            )
    return f"One row per {chart.row_label}. X axis: {chart.x.label}. {'; '.join(descriptions)}."


def _describe_heat_map(chart: HeatMap) -> str:
    cells = [
        (value, f"{row}, {chart.column_label} {column}")
        for row, line in zip(chart.rows, chart.values, strict=True)
        for column, value in zip(chart.columns, line, strict=True)
        if value is not None
    ]
    extremes = "All cells are empty."
    if cells:
        (low, low_cell), (high, high_cell) = min(cells), max(cells)
        extremes = f"Minimum: {format_number(low)} {chart.unit} ({low_cell}). "
        extremes += f"Maximum: {format_number(high)} {chart.unit} ({high_cell})."
    return f"One row per {chart.row_label}, one column per {chart.column_label}. {extremes}"


def _describe_histogram(chart: Histogram) -> str:
    ranges = ", ".join(
        f"{series.name} between {format_number(series.low)} and {format_number(series.high)}" for series in chart.series
    )
    return f"X axis: {chart.x.label}. Y axis: {chart.y.label}. {ranges}."


def _tabulate_lines(chart: LineChart) -> Table:
    positions = sorted({x for line in chart.lines for x in line.x})
    values = [dict(zip(line.x, line.y, strict=True)) for line in chart.lines]
    rows = [(format_number(x), *(format_number(y[x]) if x in y else "" for y in values)) for x in positions]
    return _make_table(chart, chart.x.label, [line.name for line in chart.lines], rows)


def _tabulate_dots(chart: DotChart) -> Table:
    rows = [(name, *(_format_dot(series.dots[i]) for series in chart.series)) for i, name in enumerate(chart.rows)]
    return _make_table(chart, chart.row_label, [series.name for series in chart.series], rows)


def _format_dot(dot: Dot | None) -> str:
    if dot is None:
        return ""
    if dot.low is None or dot.high is None:
        return format_number(dot.value)
    return f"{format_number(dot.value)} [{format_number(dot.low)}, {format_number(dot.high)}]"


def _tabulate_heat_map(chart: HeatMap) -> Table:
    rows = [
        (row, *("" if value is None else format_number(value) for value in line))
        for row, line in zip(chart.rows, chart.values, strict=True)
    ]
    return _make_table(chart, chart.row_label, [f"{chart.column_label} {column}" for column in chart.columns], rows)


def _tabulate_histogram(chart: Histogram) -> Table:
    # Series may have different bins. So there is one row per bin centre, and a cell is empty if a series has no such
    # bin.
    heights: dict[float, dict[str, str]] = {}
    for series in chart.series:
        width = (series.high - series.low) / len(series.heights)
        for i, height in enumerate(series.heights):
            heights.setdefault(round(series.low + width * (i + 0.5), 9), {})[series.name] = format_number(height, 3)

    rows = [
        (format_number(center, 3), *(cells.get(series.name, "") for series in chart.series))
        for center, cells in sorted(heights.items())
    ]
    return _make_table(chart, f"bin centre: {chart.x.label}", [series.name for series in chart.series], rows)


def _make_table(chart: Chart, first_column: str, other_columns: list[str], rows: list[tuple[str, ...]]) -> Table:
    return Table(f"Numbers: {chart.title}", (first_column, *other_columns), tuple(rows))


_DESCRIBERS: dict[type, Callable[[Any], str]] = {
    LineChart: _describe_lines,
    DotChart: _describe_dots,
    HeatMap: _describe_heat_map,
    Histogram: _describe_histogram,
}
_TABULATORS: dict[type, Callable[[Any], Table]] = {
    LineChart: _tabulate_lines,
    DotChart: _tabulate_dots,
    HeatMap: _tabulate_heat_map,
    Histogram: _tabulate_histogram,
}
