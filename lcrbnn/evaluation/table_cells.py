"""Format tables in documents with aligned columns, confidence intervals, and a dash for a missing value."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired

NO_VALUE = "–"  # text of a table cell that has no value, for example the interval of a single run
NOT_RUN = "not run"


def format_markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are also aligned in the source text."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]

    def format_line(line: Sequence[str], fill: str = " ") -> str:
        return "| " + " | ".join(cell.ljust(width, fill) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([format_line(lines[0]), format_line([""] * len(columns), "-"), *map(format_line, lines[1:])])


def compare_with_zero(values: Sequence[float]) -> PairedDifference | None:
    """Return the statistical comparison of the values with 0, or None for a single value."""
    return compare_paired([0.0] * len(values), values) if len(values) > 1 else None


def format_interval(
    values: Sequence[float], format_spec: str, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> str:
    """Return the 95 % interval of the mean as text, clipped to the possible range `bounds`.

    A single value gives a dash.
    """
    difference = compare_with_zero(values)
    return (
        NO_VALUE
        if difference is None
        else f"[{max(difference.low, bounds[0]):{format_spec}}, {min(difference.high, bounds[1]):{format_spec}}]"
    )


def format_std(values: Sequence[float]) -> str:
    """Return the standard deviation as text. A single value gives a dash."""
    return f"{statistics.stdev(values):.2f}" if len(values) > 1 else NO_VALUE


def use_minus_sign(text: str) -> str:
    """Return the text with minus signs in place of hyphens in front of numbers."""
    return text.replace("-", "−") if text[:1] in "[+-" else text
