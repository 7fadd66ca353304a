"""What a report shows, as plain data: charts, pictures and tables, without a word about how they are drawn.

A series has a `group`, its place in the list of groups, which decides its colour, mark and dash everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Values = Sequence[float]


@dataclass(frozen=True)
class Axis:
    """What is along it, with its unit; the range follows from the numbers, widened to hold `include`."""

    label: str
    include: tuple[float, ...] = ()


@dataclass(frozen=True)
class Line:
    """A curve, with the band that its runs fill."""

    name: str
    group: int
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis."""

    title: str
    about: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Dot:
    """A value and, where there is one, its interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class DotSeries:
    """A dot a row; None where there is no value."""

    name: str
    group: int
    dots: tuple[Dot | None, ...]
    hollow: bool = False  # a second kind of value of the same group


@dataclass(frozen=True)
class Dots:
    """A row a name, a dot and its interval for each series; `mark` is a line to compare with, such as 0."""

    title: str
    about: str
    x: Axis
    rows: tuple[str, ...]
    row_label: str
    series: tuple[DotSeries, ...]
    mark: float | None = None
    log: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A number a cell, (row, column); None where there is none. Signed ones have a colour for each side of 0."""

    title: str
    about: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_label: str
    column_label: str
    values: tuple[tuple[float | None, ...], ...]
    unit: str
    top: float  # the number that has the full colour
    signed: bool = False


@dataclass(frozen=True)
class Steps:
    """Heights of bins of the same width between low and high."""

    name: str
    group: int
    low: float
    high: float
    heights: Values


@dataclass(frozen=True)
class Histogram:
    """How numbers are distributed, an outline a series."""

    title: str
    about: str
    x: Axis
    y: Axis
    series: tuple[Steps, ...]


Chart = Lines | Dots | HeatMap | Histogram


@dataclass(frozen=True)
class Picture:
    """A small PNG and what is on it."""

    label: str
    png: bytes


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side."""

    title: str
    about: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Link:
    """Text that leads to a file, by its path from the report."""

    text: str
    target: str


Cell = str | Link


@dataclass(frozen=True)
class Table:
    """The first column names its row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: bool = True  # aligned to the right


@dataclass(frozen=True)
class Hint:
    """Something is not there, and this is how to have it."""

    text: str
    command: str


Part = str | Table | Gallery | Hint | Lines | Dots | HeatMap | Histogram


@dataclass(frozen=True)
class Section:
    """A heading and what is under it."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Report:
    """All of it; `groups` are the names that colours stand for."""

    title: str
    lead: str
    groups: tuple[str, ...]
    sections: tuple[Section, ...] = field(default=())
