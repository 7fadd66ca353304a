"""Cells of the tables in the documents: numbers with their interval, a dash where there is none, aligned columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lcrbnn.study.paired import Paired, paired

NONE = "–"  # what cannot be said: no figure of the paper, no interval of one run
NOT_RUN = "not run"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are aligned in the text too."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]

    def text(line: Sequence[str], fill: str = " ") -> str:
        return "| " + " | ".join(cell.ljust(width, fill) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([text(lines[0]), text([""] * len(columns), "-"), *map(text, lines[1:])])


def against_zero(values: Sequence[float]) -> Paired | None:
    """What so many values show of their mean, against 0; nothing if there is one alone."""
    return paired([0.0] * len(values), values) if len(values) > 1 else None


def interval(values: Sequence[float], shown: str, within: tuple[float, float] = (-math.inf, math.inf)) -> str:
    """The 95 % interval of the mean, as far as the mean can be `within` it; a dash for one value."""
    found = against_zero(values)
    return NONE if found is None else f"[{max(found.low, within[0]):{shown}}, {min(found.high, within[1]):{shown}}]"


def spread(values: Sequence[float]) -> str:
    """The standard deviation; a dash for one value."""
    return f"{statistics.stdev(values):.2f}" if len(values) > 1 else NONE


def minus(text: str) -> str:
    """With a minus sign in front of numbers, where a hyphen stood."""
    return text.replace("-", "−") if text[:1] in "[+-" else text
