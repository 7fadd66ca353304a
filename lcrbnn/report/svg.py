"""Charts as SVG, drawn for a width of 400: text stays readable on a phone. Colours are the page's variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lcrbnn.report.charts import Chart, Dot, Dots, DotSeries, HeatMap, Histogram, Line, Lines, Steps
from lcrbnn.report.scale import Scale
from lcrbnn.report.style import CHARTS, COLORS, GROUPS
from lcrbnn.report.text import escaped, figure, short, short_pair
from lcrbnn.report.ticks import shown
from lcrbnn.report.words import describe

WIDTH = 400
RIGHT = 12
LETTER = 6.6  # width of a letter, about
PLOT = 190  # height of the field of a curve
SHADE = 0.62  # of the fullest cell: text on it is as readable as on paper

Drawn = tuple[list[str], float]  # elements, and the height that they take


def draw(chart: Chart, name: str) -> str:
    """An <svg> element for a page that has the style sheet; `name` is unique there."""
    return _wrapped(chart, name, "")


def draw_file(chart: Chart) -> str:
    """The same as a file of its own, with its colours."""
    return _wrapped(chart, "chart", ' xmlns="http://www.w3.org/2000/svg"', f"<style>{COLORS}{CHARTS}</style>") + "\n"


def _wrapped(chart: Chart, name: str, attributes: str, style: str = "") -> str:
    parts, height = DRAWERS[type(chart)](chart)
    back = f'<rect class="back" width="{WIDTH}" height="{height:g}"/>' if style else ""
    return (
        f'<svg{attributes} viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escaped(chart.title)}</title><desc id="{name}-d">{escaped(describe(chart))}</desc>'
        f"{style}{back}{''.join(parts)}</svg>"
    )


# -- pieces ---------------------------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{where}{_class(kind)}>{escaped(text)}</text>'


def _under(x: float, y: float, text: str) -> str:
    """A number below an axis, moved to the left where it would leave the chart."""
    return _text(min(x, WIDTH - LETTER * len(text) / 2), y, text, "soft small", "middle")


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _path(points: Sequence[tuple[float, float]], kind: str, end: str = "") -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}{end}"/>'


def _mark(group: int, x: float, y: float, *, hollow: bool = False, tip: str = "") -> str:
    """A mark of the group's own shape."""
    shape = SHAPES[group % len(SHAPES)].format(x=f"{x:.1f}", y=f"{y:.1f}")
    inside = f"<title>{escaped(tip)}</title>" if tip else ""
    return f'<path class="{"hollow" if hollow else "dot"}" d="{shape}">{inside}</path>'


SHAPES = (
    "M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M{x} {y}m-3.6 -3.6h7.2v7.2h-7.2z",  # square
    "M{x} {y}m0 -4.8l4.6 8h-9.2z",  # triangle
    "M{x} {y}m0 -5l5 5l-5 5l-5 -5z",  # diamond
    "M{x} {y}m0 4.8l4.6 -8h-9.2z",  # triangle, point down
    "M{x} {y}m-1.4 -4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",  # cross
)


def _legend(series: Sequence[Line | DotSeries | Steps], y: float) -> Drawn:
    """Names beside their marks, as many in a line as fit; nothing for one series alone."""
    if len(series) < 2:
        return [], y
    parts, x = [], 4.0
    for one in series:
        name = short_pair(one.name, 44)
        width = 30 + LETTER * len(name)
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + 17
        sample = (
            _mark(one.group, x + 9, y + 8, hollow=one.hollow)
            if isinstance(one, DotSeries)
            else _rule(x, y + 8, x + 20, y + 8, "line")
        )
        parts.append(f'<g class="g{one.group % GROUPS}">{sample}</g>{_text(x + 25, y + 12, name, "small")}')
        x += width + 8
    return parts, y + 22


def _field(x: Scale, y: Scale, labels: tuple[str, str]) -> Iterator[str]:
    """The axes of a curve or histogram, with round numbers and what they count."""
    left, right, top, bottom = *sorted(x.ends), *sorted(y.ends)
    for place, text in zip(y.ticks, shown(y.ticks), strict=True):
        yield _rule(left, y(place), right, y(place), "rule")
        yield _text(left - 5, y(place) + 4, text, "soft small", "end")
    for place, text in zip(x.ticks, shown(x.ticks), strict=True):
        yield _rule(x(place), bottom, x(place), bottom + 4, "axis")
        yield _under(x(place), bottom + 17, text)
    yield _rule(left, bottom, right, bottom, "axis")
    yield _text((left + right) / 2, bottom + 34, labels[0], "small", "middle")
    yield _text(4, top - 9, labels[1], "small")


# -- kinds of charts ------------------------------------------------------------------------------------------------


def _lines(chart: Lines) -> Drawn:
    parts, top = _legend(chart.lines, 0)
    top += 22
    heights = [v for one in chart.lines for v in (*one.y, *one.low, *one.high)]
    y = Scale.over(heights, chart.y.include, (top + PLOT, top))
    x = Scale.over([v for one in chart.lines for v in one.x], chart.x.include, (_left(y), WIDTH - RIGHT), tight=True)
    parts += _field(x, y, (chart.x.label, chart.y.label))
    for one in chart.lines:
        drawn = ""
        if one.low:
            edge = [*zip(one.x, one.low, strict=True), *reversed(list(zip(one.x, one.high, strict=True)))]
            drawn += _path([(x(a), y(b)) for a, b in edge], "band", "Z")
        drawn += _path([(x(a), y(b)) for a, b in zip(one.x, one.y, strict=True)], "line") if one.y else ""
        if one.y:
            tip = f"{one.name}: {figure(one.y[-1])} at {figure(one.x[-1])}"
            drawn += _mark(one.group, x(one.x[-1]), y(one.y[-1]), tip=tip)
        parts.append(f'<g class="g{one.group % GROUPS}">{drawn}</g>')
    return parts, top + PLOT + 42


def _left(y: Scale) -> float:
    return 12 + LETTER * max(map(len, shown(y.ticks)))


def _histogram(chart: Histogram) -> Drawn:
    parts, top = _legend(chart.series, 0)
    top += 22
    plot = 130
    y = Scale.over([v for one in chart.series for v in one.heights], (0.0, *chart.y.include), (top + plot, top))
    x = Scale.over([v for one in chart.series for v in (one.low, one.high)], chart.x.include, (_left(y), WIDTH - RIGHT))
    parts += _field(x, y, (chart.x.label, chart.y.label))
    for one in chart.series:
        width = (one.high - one.low) / max(len(one.heights), 1)
        points = [(x(one.low), y(0))]
        for i, height in enumerate(one.heights):
            points += [(x(one.low + width * i), y(height)), (x(one.low + width * (i + 1)), y(height))]
        points.append((x(one.high), y(0)))
        parts.append(f'<g class="g{one.group % GROUPS}">{_path(points, "line")}</g>')
    return parts, top + plot + 42


def _dots(chart: Dots) -> Drawn:
    parts, top = _legend(chart.series, 0)
    top += 18
    step = 11 if len(chart.rows) * len(chart.series) < 40 else 8
    high = max(20, 8 + step * len(chart.series))
    left, most = _labels(chart.rows)
    known = [v for one in chart.series for dot in one.dots if dot is not None for v in _reach(dot)]
    mark = () if chart.mark is None else (chart.mark,)
    x = Scale.over(known, (*chart.x.include, *mark), (left + 8, WIDTH - RIGHT), log=chart.log, count=4)
    bottom = top + high * len(chart.rows)
    parts.append(_text(left, top - 6, chart.row_label, "soft small", "end"))
    for place, text in zip(x.ticks, shown(x.ticks), strict=True):
        parts.append(_rule(x(place), top, x(place), bottom, "rule"))
        parts.append(_under(x(place), bottom + 14, text))
    if chart.mark is not None:
        parts.append(_rule(x(chart.mark), top, x(chart.mark), bottom, "mark"))
    for i, name in enumerate(chart.rows):
        middle = top + high * (i + 0.5)
        parts.append(_text(left, middle + 4, short(name, most), "small", "end"))
        for k, one in enumerate(chart.series):
            dot = one.dots[i]
            if dot is not None:
                parts.append(_dot(one, dot, x, middle + step * (k - (len(chart.series) - 1) / 2), name))
    parts.append(_rule(left + 8, bottom, WIDTH - RIGHT, bottom, "axis"))
    parts.append(_text((left + 8 + WIDTH - RIGHT) / 2, bottom + 31, chart.x.label, "small", "middle"))
    return parts, bottom + 39


def _labels(names: Sequence[str]) -> tuple[float, int]:
    """Where names end, and how many letters of them are shown."""
    most = 26
    return 6 + LETTER * max([min(len(name), most) for name in names] + [8]), most


def _reach(dot: Dot) -> list[float]:
    return [v for v in (dot.value, dot.low, dot.high) if v is not None]


def _dot(series: DotSeries, dot: Dot, x: Scale, y: float, row: str) -> str:
    tip = f"{series.name}, {row}: {figure(dot.value)}"
    bar = ""
    if dot.low is not None and dot.high is not None:
        tip += f" [{figure(dot.low)}, {figure(dot.high)}]"
        bar = _rule(x(dot.low), y, x(dot.high), y, "bar")
    mark = _mark(series.group, x(dot.value), y, hollow=series.hollow, tip=tip)
    return f'<g class="g{series.group % GROUPS}">{bar}{mark}</g>'


def _heat(chart: HeatMap) -> Drawn:
    left, most = _labels(chart.rows)
    top, high = 36, 21
    wide = (WIDTH - RIGHT - left - 8) / max(len(chart.columns), 1)
    parts = [_text(left, 13, chart.row_label, "soft small", "end")]
    parts.append(_text(left + 8 + wide * len(chart.columns) / 2, 13, chart.column_label, "soft small", "middle"))
    for j, column in enumerate(chart.columns):
        parts.append(_text(left + 8 + wide * (j + 0.5), 30, column, "soft small", "middle"))
    for i, (row, line) in enumerate(zip(chart.rows, chart.values, strict=True)):
        parts.append(_text(left, top + high * (i + 0.5) + 4, short(row, most), "small", "end"))
        for j, value in enumerate(line):
            if value is not None:
                tip = f"{row}, {chart.column_label} {chart.columns[j]}: {figure(value)} {chart.unit}"
                parts.append(_cell(chart, value, left + 8 + wide * j, top + high * i, wide, high, tip))
    bottom = top + high * len(chart.rows)
    return parts + _key(chart, left + 8, bottom + 12), bottom + 46


def _cell(chart: HeatMap, value: float, x: float, y: float, wide: float, high: float, tip: str) -> str:
    kind = "warm" if chart.signed and value > 0 else "cool"
    shade = SHADE * min(abs(value) / chart.top, 1) if chart.top > 0 else 0
    text = f"{value:+.1f}" if chart.signed else f"{value:.1f}"
    return (
        f'<g><title>{escaped(tip)}</title><rect class="cell {kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" '
        f'height="{high}" fill-opacity="{shade:.2f}"/>'
        f"{_text(x + wide / 2, y + high / 2 + 4, text.replace('-', '−'), 'small', 'middle')}</g>"
    )


def _key(chart: HeatMap, x: float, y: float) -> list[str]:
    """What the shades stand for."""
    steps = [i / 4 for i in range(-4 if chart.signed else 0, 5)]
    wide = (WIDTH - RIGHT - x) / len(steps)
    parts = []
    for i, share in enumerate(steps):
        kind = "warm" if chart.signed and share > 0 else "cool"
        parts.append(
            f'<rect class="cell {kind}" x="{x + wide * i:.1f}" y="{y}" width="{wide:.1f}" height="8" '
            f'fill-opacity="{SHADE * abs(share):.2f}"/>'
        )
    for share in (-1.0, 0.0, 1.0) if chart.signed else (0.0, 1.0):
        anchor = {-1.0: "start", 0.0: "middle" if chart.signed else "start", 1.0: "end"}[share]
        place = {"start": x, "middle": x + wide * len(steps) / 2, "end": x + wide * len(steps)}[anchor]
        sign = "+" if chart.signed and share > 0 else ""
        parts.append(_text(place, y + 22, f"{sign}{figure(share * chart.top, 3)} {chart.unit}", "soft small", anchor))
    return parts


DRAWERS: dict[type, Callable[[Any], Drawn]] = {Lines: _lines, Dots: _dots, HeatMap: _heat, Histogram: _histogram}
