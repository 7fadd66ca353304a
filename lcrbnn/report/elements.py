"""Contents of a report as plain data: charts, images, tables and text, independent of their rendering.

The `group_index` of a series is its position in the list of groups. It selects colour, marker and dash in every chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Values = Sequence[float]


@dataclass(frozen=True)
class Axis:
    """Label of an axis with its unit. The range covers the plotted numbers and `included_values`."""

    label: str
    included_values: tuple[float, ...] = ()


@dataclass(frozen=True)
class LineSeries:
    """A curve with an optional band from the lowest to the highest run."""

    name: str
    group_index: int
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()


@dataclass(frozen=True)
class LineChart:
    """Curves over one x axis."""

    title: str
    description: str
    x: Axis
    y: Axis
    lines: tuple[LineSeries, ...]


@dataclass(frozen=True)
class Dot:
    """A value and its optional interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class DotSeries:
    """One dot per row, None for a missing value."""

    name: str
    group_index: int
    dots: tuple[Dot | None, ...]
    is_hollow: bool = False  # marks a second kind of value of the same group


@dataclass(frozen=True)
class DotChart:
    """Rows of dots with intervals, one dot per series. A line marks `reference_value`, such as 0."""

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
    """A number per cell (row, column), None for a missing one. Signed maps use one colour on each side of 0."""

    title: str
    description: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_label: str
    column_label: str
    values: tuple[tuple[float | None, ...], ...]
    unit: str
    max_value: float  # value with the full colour
    is_signed: bool = False


@dataclass(frozen=True)
class HistogramSeries:
    """Heights of equally wide bins between low and high."""

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
    """A small PNG image with its label."""

    label: str
    png: bytes


@dataclass(frozen=True)
class Gallery:
    """Labelled images in a grid."""

    title: str
    description: str
    images: tuple[GalleryImage, ...]


@dataclass(frozen=True)
class Link:
    """Text linked to a file. The target is a path relative to the report."""

    text: str
    target: str


Cell = str | Link


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_numeric: bool = True  # numeric columns are right-aligned


@dataclass(frozen=True)
class CommandHint:
    """A sentence about missing data and the command that produces it."""

    text: str
    command: str


Element = str | Table | Gallery | CommandHint | LineChart | DotChart | HeatMap | Histogram


@dataclass(frozen=True)
class Section:
    """A heading and the elements below it."""

    title: str
    elements: tuple[Element, ...]


@dataclass(frozen=True)
class Report:
    """A complete report. `group_names` are in the order of the group indices."""

    title: str
    introduction: str
    group_names: tuple[str, ...]
    sections: tuple[Section, ...] = field(default=())
