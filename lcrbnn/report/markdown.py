"""A report as Markdown for a repository: its charts and pictures are files in a folder beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lcrbnn.report.charts import Cell, Chart, Gallery, Hint, Link, Part, Report, Table
from lcrbnn.report.svg import draw_file
from lcrbnn.report.text import address, plain
from lcrbnn.report.words import describe
from lcrbnn.study.cells import markdown

Files = dict[str, bytes]  # by their path from the report


def document(report: Report, folder: str) -> tuple[str, Files]:
    """The text, and the files of its charts, whose names start with `folder`."""
    files: Files = {}
    blocks = [f"# {safe(report.title)}", safe(report.lead)]
    for section in report.sections:
        blocks.append(f"## {safe(section.title)}")
        blocks += [_part(part, folder, files) for part in section.parts]
    return "\n\n".join(blocks) + "\n", files


def safe(text: str) -> str:
    """Text that means itself: no markup, no HTML, no new line, no cell of a table."""
    flat = re.sub(r"\s+", " ", plain(text))
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", flat)


def _part(part: Part, folder: str, files: Files) -> str:
    if isinstance(part, Chart):
        number = 1 + sum(name.endswith(".svg") for name in files)
        path = f"{folder}/{number:02d}-{_slug(part.title)}.svg"
        files[path] = draw_file(part).encode()
        return f"**{safe(part.title)}** {safe(part.about)}\n\n![{safe(describe(part))}]({address(path)})"
    if isinstance(part, Gallery):
        return _gallery(part, folder, files)
    return PARTS[type(part)](part)


def _gallery(gallery: Gallery, folder: str, files: Files) -> str:
    shown = []
    for picture in gallery.pictures:
        path = f"{folder}/{_slug(picture.label)}.png"
        files[path] = picture.png
        shown.append(f"![{safe(picture.label)}]({address(path)})")
    return f"**{safe(gallery.title)}** {safe(gallery.about)}\n\n{' '.join(shown)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "chart"


def _table(table: Table) -> str:
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return f"**{safe(table.title)}**\n\n{markdown([safe(column) for column in table.columns], rows)}"


def _cell(cell: Cell) -> str:
    return f"[{safe(cell.text)}]({address(cell.target)})" if isinstance(cell, Link) else safe(cell)


def _hint(hint: Hint) -> str:
    return f"> {safe(hint.text)} {safe(hint.command)}"


PARTS: dict[type, Callable[[Any], str]] = {str: safe, Table: _table, Hint: _hint}
