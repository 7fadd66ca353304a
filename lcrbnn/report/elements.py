"""The contents of a report as plain data (charts, images, tables, text), for every output format.

The `group_index` of a series is its position in the list of groups. It determines colour, marker and dash in every
chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Values = Sequence[float]


@dataclass(frozen=True)
class Axis:
    """The label of an axis with its unit. The axis covers all plotted numbers and the `included_values`."""

    label: str
    included_values: tuple[float, ...] = ()


@dataclass(frozen=True)
class LineSeries:
    """A curve, with an optional band from the smallest to the largest value of the runs."""

    name: str
    group_index: int
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()


@dataclass(frozen=True)
class LineChart:
    """Several curves over one x axis."""

    title: str
    description: str
    x: Axis
    y: Axis
    lines: tuple[LineSeries, ...]


@dataclass(frozen=True)
class Dot:
    """A value and, optionally, its interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class DotSeries:
    """One dot per row of a chart. A missing value is None."""

    name: str
    group_index: int
    dots: tuple[Dot | None, ...]
    # True if the markers are hollow, because this series shows a second kind of value of the same group
    is_hollow: bool = False


@dataclass(frozen=True)
class DotChart:
    """Rows of dots with intervals, one dot per series. A line marks `reference_value`, for example 0."""

    title: str
    description: str
    x: Axis
    rows: tuple[str, ...]
    row_label: str
    series: tuple[DotSeries, ...]
    reference_value: float | None = None
    is_log: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A number per cell (row, column). A missing number is None.

    Signed maps have different colours below and above 0.
    """

    title: str
    description: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_label: str
    column_label: str
    values: tuple[tuple[float | None, ...], ...]
    unit: str
    max_value: float  # value that is drawn in the full colour
    is_signed: bool = False


@dataclass(frozen=True)
class HistogramSeries:
    """Heights of the bins between low and high, which have equal widths."""

    name: str
    group_index: int
    low: float
    high: float
    heights: Values


@dataclass(frozen=True)
class Histogram:
    """Distributions of numbers, one outline per series."""

    title: str
    description: str
    x: Axis
    y: Axis
    series: tuple[HistogramSeries, ...]


Chart = LineChart | DotChart | HeatMap | Histogram


@dataclass(frozen=True)
class GalleryImage:
    """A small PNG image and its label."""

    label: str
    png: bytes


@dataclass(frozen=True)
class Gallery:
    """A grid of images with labels."""

    title: str
    description: str
    images: tuple[GalleryImage, ...]


@dataclass(frozen=True)
class Link:
    """A text that links to a file. The target is a path relative to the report."""

    text: str
    target: str


Cell = str | Link


@dataclass(frozen=True)
class Table:
    """A table. The first cell of a row is its name."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_numeric: bool = True  # True if the columns contain numbers, which are right-aligned


@dataclass(frozen=True)
class CommandHint:
    """A sentence about missing data, with the command that produces them."""

    text: str
    command: str


Element = str | Table | Gallery | CommandHint | LineChart | DotChart | HeatMap | Histogram


@dataclass(frozen=True)
class Section:
    """A heading and the elements that follow it."""

    title: str
    elements: tuple[Element, ...]


@dataclass(frozen=True)
class Report:
    """A complete report. The order of `group_names` is that of the group indices."""

    title: str
    introduction: str
    group_names: tuple[str, ...]
    sections: tuple[Section, ...] = field(default=())
