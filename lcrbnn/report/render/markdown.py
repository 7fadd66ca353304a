"""Render a report as Markdown. Charts and images are files in a folder next to the report."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lcrbnn.evaluation.table_cells import format_markdown_table
from lcrbnn.report.elements import Cell, Chart, CommandHint, Element, Gallery, Link, Report, Table
from lcrbnn.report.render.chart_description import describe_chart
from lcrbnn.report.render.svg import render_svg_file
from lcrbnn.report.render.text import escape_controls, make_link

Files = dict[str, bytes]  # dictionary from a path relative to the report to the content of the file


def render_markdown(report: Report, charts_folder: str) -> tuple[str, Files]:
    """Return the Markdown text and the files of its charts and images. All files are in `charts_folder`."""
    files: Files = {}
    blocks = [f"# {escape_markdown(report.title)}", escape_markdown(report.introduction)]
    for section in report.sections:
        blocks.append(f"## {escape_markdown(section.title)}")
        blocks += [_render_element(element, charts_folder, files) for element in section.elements]
    return "\n\n".join(blocks) + "\n", files


def escape_markdown(text: str) -> str:
    """Return the text escaped, so that it contains no markup, HTML, line break or table delimiter."""
    flat = re.sub(r"\s+", " ", escape_controls(text))
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", flat)


def _render_element(element: Element, charts_folder: str, files: Files) -> str:
    if isinstance(element, Chart):
        number = 1 + sum(name.endswith(".svg") for name in files)
        path = f"{charts_folder}/{number:02d}-{_make_file_name(element.title)}.svg"
        files[path] = render_svg_file(element).encode()
        chart_link = f"![{escape_markdown(describe_chart(element))}]({make_link(path)})"
        return f"**{escape_markdown(element.title)}** {escape_markdown(element.description)}\n\n{chart_link}"
    if isinstance(element, Gallery):
        return _render_gallery(element, charts_folder, files)
    return RENDERERS[type(element)](element)


def _render_gallery(gallery: Gallery, charts_folder: str, files: Files) -> str:
    links = []
    for image in gallery.images:
        path = f"{charts_folder}/{_make_file_name(image.label)}.png"
        files[path] = image.png
        links.append(f"![{escape_markdown(image.label)}]({make_link(path)})")
    return f"**{escape_markdown(gallery.title)}** {escape_markdown(gallery.description)}\n\n{' '.join(links)}"


def _make_file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "chart"


def _render_table(table: Table) -> str:
    rows = [[_render_cell(cell) for cell in row] for row in table.rows]
    columns = [escape_markdown(column) for column in table.columns]
    return f"**{escape_markdown(table.title)}**\n\n{format_markdown_table(columns, rows)}"


def _render_cell(cell: Cell) -> str:
    text = escape_markdown(cell.text if isinstance(cell, Link) else cell)
    return f"[{text}]({make_link(cell.target)})" if isinstance(cell, Link) else text


def _render_hint(hint: CommandHint) -> str:
    return f"> {escape_markdown(hint.text)} {escape_markdown(hint.command)}"


RENDERERS: dict[type, Callable[[Any], str]] = {str: escape_markdown, Table: _render_table, CommandHint: _render_hint}
