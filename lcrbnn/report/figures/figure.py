"""Draw matplotlib figures in one style and write each file atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError, check_output_file
from lcrbnn.runs.atomic_files import write_atomic

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
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
    "svg.hashsalt": "lcrbnn",  # a fixed date and a fixed hash salt, so that equal figures give equal files
}


def escape_label(text: str) -> str:
    """Return a name, escaped so that matplotlib shows it without changes.

    Without this, "$" would start a formula, and a leading "_" would hide a legend entry.
    """
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def parse_figure_format(path: Path) -> str:
    """Return the file type of a file name (png, svg or pdf). Raise InputError for any other suffix."""
    file_format = path.suffix.lstrip(".")
    if file_format not in ("png", "svg", "pdf"):
        raise InputError(f"a figure is a .png, .svg or .pdf file; got {str(path)!r}")
    return file_format


def check_figure_path(path: Path) -> None:
    """Raise InputError if the file type is not supported or the file cannot be written."""
    parse_figure_format(path)
    check_output_file(path, "a figure")


@contextmanager
def draw_figure(path: Path, rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """Yield a figure of this size in inches, and its axes as an array (rows, columns). At the end, write the figure.

    The suffix of `path` determines the file type: png, svg or pdf. After an error, nothing is written.
    """
    file_format = parse_figure_format(path)
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
        buffer = BytesIO()
        figure.savefig(buffer, format=file_format, dpi=150, metadata={"Date": None} if file_format == "svg" else None)
        try:
            write_atomic(path, [buffer.getbuffer()])
        except OSError as error:
            raise InputError(f"a figure cannot be written to {path}: {error.strerror}") from None
