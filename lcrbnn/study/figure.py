"""Figures: one look for all of them, and files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_file
from lcrbnn.runs.files import write_whole

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE = "#0072B2", "#D55E00"
COLORS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")

STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "svg.hashsalt": "lcrbnn",  # the same figure gives the same file
}


def named(text: str) -> str:
    """A name as matplotlib shows it: a dollar sign begins no formula, an underscore hides it from no legend."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def kind_of(path: Path) -> str:
    """png, svg or pdf, by the name of a file; anything else is refused."""
    kind = path.suffix.lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"a figure is a .png, .svg or .pdf file; got {str(path)!r}")
    return kind


def check_figure(path: Path) -> None:
    """Raise unless a figure can be written to this path: the kind of file is known, and its place can be written."""
    kind_of(path)
    check_output_file(path, "a figure")


@contextmanager
def drawing(path: Path, rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """Give a figure and its array of axes, (rows, columns), sized in inches; write it to `path` if the body succeeds.

    The kind of file follows its name: png, svg or pdf.
    """
    kind = kind_of(path)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("a figure needs matplotlib, which is not installed here") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"a figure cannot be written to {path}: {error.strerror}") from None
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False)
        drawn = BytesIO()
        figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        try:
            write_whole(path, [drawn.getbuffer()])
        except OSError as error:
            raise InputError(f"a figure cannot be written to {path}: {error.strerror}") from None
