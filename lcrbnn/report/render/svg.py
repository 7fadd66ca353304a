"""Draw charts as SVG, 400 units wide, so that text is readable on a phone. Colours are CSS variables of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lcrbnn.report.elements import (
    Chart,
    Dot,
    DotChart,
    DotSeries,
    HeatMap,
    Histogram,
    HistogramSeries,
    LineChart,
    LineSeries,
)
from lcrbnn.report.render.axis import AxisScale, format_ticks
from lcrbnn.report.render.chart_description import describe_chart
from lcrbnn.report.render.style import CHARTS_CSS, COLORS_CSS, MAX_GROUPS
from lcrbnn.report.render.text import escape_html, format_number, shorten_difference_name, shorten_name

WIDTH = 400
RIGHT_MARGIN = 12
LETTER_WIDTH = 6.6  # approximate width of a letter in SVG units; the layout is computed without measuring fonts
PLOT_HEIGHT = 190  # height of a line chart in SVG units, without the labels of its axes
MAX_CELL_OPACITY = 0.62  # opacity of the cell with the maximum value; the contrast of its text stays above 4.5

Drawing = tuple[list[str], float]  # SVG elements, and their total height


def render_svg(chart: Chart, chart_id: str) -> str:
    """Return an <svg> element for a page that has the style sheet. `chart_id` must be unique in the page."""
    return _render_chart(chart, chart_id, "")


def render_svg_file(chart: Chart) -> str:
    """Return a chart as an SVG file that includes its style sheet."""
    return (
        _render_chart(chart, "chart", ' xmlns="http://www.w3.org/2000/svg"', f"<style>{COLORS_CSS}{CHARTS_CSS}</style>")
        + "\n"
    )


def _render_chart(chart: Chart, chart_id: str, attributes: str, style: str = "") -> str:
    parts, height = DRAWERS[type(chart)](chart)
    background = f'<rect class="back" width="{WIDTH}" height="{height:g}"/>' if style else ""
    return (
        f'<svg{attributes} viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{chart_id}-t {chart_id}-d">'
        f'<title id="{chart_id}-t">{escape_html(chart.title)}</title>'
        f'<desc id="{chart_id}-d">{escape_html(describe_chart(chart))}</desc>'
        f"{style}{background}{''.join(parts)}</svg>"
    )


def _draw_text(x: float, y: float, text: str, css_class: str = "", anchor: str = "start") -> str:
    anchor_attribute = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor_attribute}{_class_attribute(css_class)}>{escape_html(text)}</text>'


def _draw_tick_label(x: float, y: float, text: str) -> str:
    """Draw a number below the x axis. If it would extend over the edge, shift it to the left."""
    return _draw_text(min(x, WIDTH - LETTER_WIDTH * len(text) / 2), y, text, "soft small", "middle")


def _class_attribute(css_class: str) -> str:
    return f' class="{css_class}"' if css_class else ""


def _draw_line(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    return f'<path class="{css_class}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _draw_path(points: Sequence[tuple[float, float]], css_class: str, end: str = "") -> str:
    return f'<path class="{css_class}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}{end}"/>'


def _draw_marker(group_index: int, x: float, y: float, *, is_hollow: bool = False, tooltip: str = "") -> str:
    """Draw the marker of a group. Each group has a different shape."""
    shape = MARKER_SHAPES[group_index % len(MARKER_SHAPES)].format(x=f"{x:.1f}", y=f"{y:.1f}")
    title = f"<title>{escape_html(tooltip)}</title>" if tooltip else ""
    return f'<path class="{"hollow" if is_hollow else "dot"}" d="{shape}">{title}</path>'


MARKER_SHAPES = (
    "M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # marker: circle
    "M{x} {y}m-3.6 -3.6h7.2v7.2h-7.2z",  # marker: square
    "M{x} {y}m0 -4.8l4.6 8h-9.2z",  # marker: triangle with the point up
    "M{x} {y}m0 -5l5 5l-5 5l-5 -5z",  # marker: diamond
    "M{x} {y}m0 4.8l4.6 -8h-9.2z",  # marker: triangle with the point down
    "M{x} {y}m-1.4 -4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",  # marker: cross
)


def _draw_legend(series: Sequence[LineSeries | DotSeries | HistogramSeries], y: float) -> Drawing:
    """Draw the names and markers of the series, several per line. A single series has no legend."""
    if len(series) < 2:
        return [], y
    parts, x = [], 4.0
    for entry in series:
        name = shorten_difference_name(entry.name, 44)
        width = 30 + LETTER_WIDTH * len(name)
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + 17
        sample = (
            _draw_marker(entry.group_index, x + 9, y + 8, is_hollow=entry.is_hollow)
            if isinstance(entry, DotSeries)
            else _draw_line(x, y + 8, x + 20, y + 8, "line")
        )
        parts.append(
            f'<g class="g{entry.group_index % MAX_GROUPS}">{sample}</g>{_draw_text(x + 25, y + 12, name, "small")}'
        )
        x += width + 8
    return parts, y + 22


def _draw_axes(x: AxisScale, y: AxisScale, labels: tuple[str, str]) -> Iterator[str]:
    """Draw the axes of a line chart or histogram with ticks and labels."""
    left, right, top, bottom = *sorted(x.end_positions), *sorted(y.end_positions)
    for tick, text in zip(y.ticks, format_ticks(y.ticks), strict=True):
        yield _draw_line(left, y(tick), right, y(tick), "rule")
        yield _draw_text(left - 5, y(tick) + 4, text, "soft small", "end")
    for tick, text in zip(x.ticks, format_ticks(x.ticks), strict=True):
        yield _draw_line(x(tick), bottom, x(tick), bottom + 4, "axis")
        yield _draw_tick_label(x(tick), bottom + 17, text)
    yield _draw_line(left, bottom, right, bottom, "axis")
    yield _draw_text((left + right) / 2, bottom + 34, labels[0], "small", "middle")
    yield _draw_text(4, top - 9, labels[1], "small")


def _draw_line_chart(chart: LineChart) -> Drawing:
    parts, top = _draw_legend(chart.lines, 0)
    top += 22
    y_values = [v for line in chart.lines for v in (*line.y, *line.low, *line.high)]
    y = AxisScale.fit(y_values, chart.y.included_values, (top + PLOT_HEIGHT, top))
    x = AxisScale.fit(
        [v for line in chart.lines for v in line.x],
        chart.x.included_values,
        (_left_margin(y), WIDTH - RIGHT_MARGIN),
        is_tight=True,
    )
    parts += _draw_axes(x, y, (chart.x.label, chart.y.label))
    for line in chart.lines:
        svg = ""
        if line.low:
            edge = [*zip(line.x, line.low, strict=True), *reversed(list(zip(line.x, line.high, strict=True)))]
            svg += _draw_path([(x(a), y(b)) for a, b in edge], "band", "Z")
        svg += _draw_path([(x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)], "line") if line.y else ""
        if line.y:
            tooltip = f"{line.name}: {format_number(line.y[-1])} at {format_number(line.x[-1])}"
            svg += _draw_marker(line.group_index, x(line.x[-1]), y(line.y[-1]), tooltip=tooltip)
        parts.append(f'<g class="g{line.group_index % MAX_GROUPS}">{svg}</g>')
    return parts, top + PLOT_HEIGHT + 42


def _left_margin(y: AxisScale) -> float:
    return 12 + LETTER_WIDTH * max(map(len, format_ticks(y.ticks)))


def _draw_histogram(chart: Histogram) -> Drawing:
    parts, top = _draw_legend(chart.series, 0)
    top += 22
    plot_height = 130
    y = AxisScale.fit(
        [v for series in chart.series for v in series.heights],
        (0.0, *chart.y.included_values),
        (top + plot_height, top),
    )
    x = AxisScale.fit(
        [v for series in chart.series for v in (series.low, series.high)],
        chart.x.included_values,
        (_left_margin(y), WIDTH - RIGHT_MARGIN),
    )
    parts += _draw_axes(x, y, (chart.x.label, chart.y.label))
    for series in chart.series:
        width = (series.high - series.low) / max(len(series.heights), 1)
        points = [(x(series.low), y(0))]
        for i, height in enumerate(series.heights):
            points += [(x(series.low + width * i), y(height)), (x(series.low + width * (i + 1)), y(height))]
        points.append((x(series.high), y(0)))
        parts.append(f'<g class="g{series.group_index % MAX_GROUPS}">{_draw_path(points, "line")}</g>')
    return parts, top + plot_height + 42


def _draw_dot_chart(chart: DotChart) -> Drawing:
    parts, top = _draw_legend(chart.series, 0)
    top += 18
    series_height = 11 if len(chart.rows) * len(chart.series) < 40 else 8
    row_height = max(20, 8 + series_height * len(chart.series))
    left, max_length = _fit_row_labels(chart.rows)
    values = [v for series in chart.series for dot in series.dots if dot is not None for v in _list_dot_values(dot)]
    reference_values = () if chart.reference_value is None else (chart.reference_value,)
    x = AxisScale.fit(
        values,
        (*chart.x.included_values, *reference_values),
        (left + 8, WIDTH - RIGHT_MARGIN),
        is_log=chart.is_log,
        num_ticks=4,
    )
    bottom = top + row_height * len(chart.rows)
    parts.append(_draw_text(left, top - 6, chart.row_label, "soft small", "end"))
    for tick, text in zip(x.ticks, format_ticks(x.ticks), strict=True):
        parts.append(_draw_line(x(tick), top, x(tick), bottom, "rule"))
        parts.append(_draw_tick_label(x(tick), bottom + 14, text))
    if chart.reference_value is not None:
        parts.append(_draw_line(x(chart.reference_value), top, x(chart.reference_value), bottom, "mark"))
    for i, name in enumerate(chart.rows):
        middle = top + row_height * (i + 0.5)
        parts.append(_draw_text(left, middle + 4, shorten_name(name, max_length), "small", "end"))
        for k, series in enumerate(chart.series):
            dot = series.dots[i]
            if dot is not None:
                parts.append(
                    _draw_dot(series, dot, x, middle + series_height * (k - (len(chart.series) - 1) / 2), name)
                )
    parts.append(_draw_line(left + 8, bottom, WIDTH - RIGHT_MARGIN, bottom, "axis"))
    parts.append(_draw_text((left + 8 + WIDTH - RIGHT_MARGIN) / 2, bottom + 31, chart.x.label, "small", "middle"))
    return parts, bottom + 39


def _fit_row_labels(names: Sequence[str]) -> tuple[float, int]:
    """Return the right end of the row labels, and the maximum number of letters per label."""
    max_length = 26
    return 6 + LETTER_WIDTH * max([min(len(name), max_length) for name in names] + [8]), max_length


def _list_dot_values(dot: Dot) -> list[float]:
    return [v for v in (dot.value, dot.low, dot.high) if v is not None]


def _draw_dot(series: DotSeries, dot: Dot, x: AxisScale, y: float, row: str) -> str:
    tooltip = f"{series.name}, {row}: {format_number(dot.value)}"
    interval = ""
    if dot.low is not None and dot.high is not None:
        tooltip += f" [{format_number(dot.low)}, {format_number(dot.high)}]"
        interval = _draw_line(x(dot.low), y, x(dot.high), y, "bar")
    marker = _draw_marker(series.group_index, x(dot.value), y, is_hollow=series.is_hollow, tooltip=tooltip)
    return f'<g class="g{series.group_index % MAX_GROUPS}">{interval}{marker}</g>'


def _draw_heat_map(chart: HeatMap) -> Drawing:
    left, max_length = _fit_row_labels(chart.rows)
    top, row_height = 36, 21
    column_width = (WIDTH - RIGHT_MARGIN - left - 8) / max(len(chart.columns), 1)
    parts = [_draw_text(left, 13, chart.row_label, "soft small", "end")]
    parts.append(
        _draw_text(left + 8 + column_width * len(chart.columns) / 2, 13, chart.column_label, "soft small", "middle")
    )
    for j, column in enumerate(chart.columns):
        parts.append(_draw_text(left + 8 + column_width * (j + 0.5), 30, column, "soft small", "middle"))
    for i, (row, line) in enumerate(zip(chart.rows, chart.values, strict=True)):
        parts.append(_draw_text(left, top + row_height * (i + 0.5) + 4, shorten_name(row, max_length), "small", "end"))
        for j, value in enumerate(line):
            if value is not None:
                tooltip = f"{row}, {chart.column_label} {chart.columns[j]}: {format_number(value)} {chart.unit}"
                parts.append(
                    _draw_cell(
                        chart,
                        value,
                        left + 8 + column_width * j,
                        top + row_height * i,
                        column_width,
                        row_height,
                        tooltip,
                    )
                )
    bottom = top + row_height * len(chart.rows)
    return parts + _draw_color_key(chart, left + 8, bottom + 12), bottom + 46


def _draw_cell(chart: HeatMap, value: float, x: float, y: float, width: float, height: float, tooltip: str) -> str:
    css_class = "warm" if chart.is_signed and value > 0 else "cool"
    opacity = MAX_CELL_OPACITY * min(abs(value) / chart.max_value, 1) if chart.max_value > 0 else 0
    text = f"{value:+.1f}" if chart.is_signed else f"{value:.1f}"
    return (
        f'<g><title>{escape_html(tooltip)}</title><rect class="cell {css_class}" x="{x:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{height}" fill-opacity="{opacity:.2f}"/>'
        f"{_draw_text(x + width / 2, y + height / 2 + 4, text.replace('-', '−'), 'small', 'middle')}</g>"
    )


def _draw_color_key(chart: HeatMap, x: float, y: float) -> list[str]:
    """Draw the colour key, a row of boxes from the smallest to the largest value with numbers below."""
    steps = [i / 4 for i in range(-4 if chart.is_signed else 0, 5)]
    step_width = (WIDTH - RIGHT_MARGIN - x) / len(steps)
    parts = []
    for i, fraction in enumerate(steps):
        css_class = "warm" if chart.is_signed and fraction > 0 else "cool"
        parts.append(
            f'<rect class="cell {css_class}" x="{x + step_width * i:.1f}" y="{y}" width="{step_width:.1f}" height="8" '
            f'fill-opacity="{MAX_CELL_OPACITY * abs(fraction):.2f}"/>'
        )
    for fraction in (-1.0, 0.0, 1.0) if chart.is_signed else (0.0, 1.0):
        anchor = {-1.0: "start", 0.0: "middle" if chart.is_signed else "start", 1.0: "end"}[fraction]
        position = {"start": x, "middle": x + step_width * len(steps) / 2, "end": x + step_width * len(steps)}[anchor]
        sign = "+" if chart.is_signed and fraction > 0 else ""
        parts.append(
            _draw_text(
                position,
                y + 22,
                f"{sign}{format_number(fraction * chart.max_value, 3)} {chart.unit}",
                "soft small",
                anchor,
            )
        )
    return parts


DRAWERS: dict[type, Callable[[Any], Drawing]] = {
    LineChart: _draw_line_chart,
    DotChart: _draw_dot_chart,
    HeatMap: _draw_heat_map,
    Histogram: _draw_histogram,
}
