"""A chart in words and as a table: for those who cannot see it, and for those who want the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lcrbnn.report.charts import Chart, Dot, Dots, HeatMap, Histogram, Lines, Table
from lcrbnn.report.text import figure


def describe(chart: Chart) -> str:
    """What the chart shows: what it is about, its axes, and where its numbers lie."""
    return f"{chart.about} {_DESCRIBED[type(chart)](chart)}"


def numbers(chart: Chart) -> Table:
    """All of its numbers."""
    return _NUMBERS[type(chart)](chart)


def _lines(chart: Lines) -> str:
    found = [
        f"{one.name} goes from {figure(one.y[0])} at {figure(one.x[0])} to {figure(one.y[-1])} at {figure(one.x[-1])}"
        for one in chart.lines
        if one.y
    ]
    return f"Along: {chart.x.label}; up: {chart.y.label}. {'; '.join(found)}."


def _dots(chart: Dots) -> str:
    found = []
    for one in chart.series:
        known = [(dot.value, row) for row, dot in zip(chart.rows, one.dots, strict=True) if dot is not None]
        if len(known) == 1:
            found.append(f"{one.name}: {figure(known[0][0])} ({known[0][1]})")
        elif known:
            (low, where_low), (high, where_high) = min(known), max(known)
            found.append(f"{one.name}: from {figure(low)} ({where_low}) to {figure(high)} ({where_high})")
    return f"A row a {chart.row_label}; along: {chart.x.label}. {'; '.join(found)}."


def _heat(chart: HeatMap) -> str:
    cells = [
        (value, f"{row}, {chart.column_label} {column}")
        for row, line in zip(chart.rows, chart.values, strict=True)
        for column, value in zip(chart.columns, line, strict=True)
        if value is not None
    ]
    found = (
        f"Least: {figure(min(cells)[0])} {chart.unit} ({min(cells)[1]}); most: {figure(max(cells)[0])} {chart.unit} "
        f"({max(cells)[1]})."
        if cells
        else "No cell has a number."
    )
    return f"A row a {chart.row_label}, a column a {chart.column_label}. {found}"


def _histogram(chart: Histogram) -> str:
    found = ", ".join(f"{one.name} between {figure(one.low)} and {figure(one.high)}" for one in chart.series)
    return f"Along: {chart.x.label}; up: {chart.y.label}. {found}."


def _lines_table(chart: Lines) -> Table:
    places = sorted({x for one in chart.lines for x in one.x})
    found = [dict(zip(one.x, one.y, strict=True)) for one in chart.lines]
    rows = [(figure(x), *(figure(one[x]) if x in one else "" for one in found)) for x in places]
    return _table(chart, chart.x.label, [one.name for one in chart.lines], rows)


def _dots_table(chart: Dots) -> Table:
    rows = [(name, *(_dot(one.dots[i]) for one in chart.series)) for i, name in enumerate(chart.rows)]
    return _table(chart, chart.row_label, [one.name for one in chart.series], rows)


def _dot(dot: Dot | None) -> str:
    if dot is None:
        return ""
    if dot.low is None or dot.high is None:
        return figure(dot.value)
    return f"{figure(dot.value)} [{figure(dot.low)}, {figure(dot.high)}]"


def _heat_table(chart: HeatMap) -> Table:
    rows = [
        (row, *("" if value is None else figure(value) for value in line))
        for row, line in zip(chart.rows, chart.values, strict=True)
    ]
    return _table(chart, chart.row_label, [f"{chart.column_label} {column}" for column in chart.columns], rows)


def _histogram_table(chart: Histogram) -> Table:
    # Series may have bins of their own: a row a middle, and nothing where a series has no bin with that middle.
    found: dict[float, dict[str, str]] = {}
    for one in chart.series:
        width = (one.high - one.low) / len(one.heights)
        for i, height in enumerate(one.heights):
            found.setdefault(round(one.low + width * (i + 0.5), 9), {})[one.name] = figure(height, 3)

    def rows() -> Iterator[tuple[str, ...]]:
        for middle, cells in sorted(found.items()):
            yield figure(middle, 3), *(cells.get(one.name, "") for one in chart.series)

    return _table(chart, f"middle of the bin: {chart.x.label}", [one.name for one in chart.series], list(rows()))


def _table(chart: Chart, first: str, others: list[str], rows: list[tuple[str, ...]]) -> Table:
    return Table(f"Numbers: {chart.title}", (first, *others), tuple(rows))


_DESCRIBED: dict[type, Callable[[Any], str]] = {Lines: _lines, Dots: _dots, HeatMap: _heat, Histogram: _histogram}
_NUMBERS: dict[type, Callable[[Any], Table]] = {
    Lines: _lines_table,
    Dots: _dots_table,
    HeatMap: _heat_table,
    Histogram: _histogram_table,
}
