"""Render a report as a single HTML page without scripts or external resources."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from lcrbnn.report.elements import (
    Cell,
    Chart,
    CommandHint,
    DotChart,
    Element,
    Gallery,
    HeatMap,
    Histogram,
    LineChart,
    Link,
    Report,
    Section,
    Table,
)
from lcrbnn.report.render.chart_description import tabulate_chart
from lcrbnn.report.render.style import CHARTS_CSS, COLORS_CSS, PAGE_CSS
from lcrbnn.report.render.svg import render_svg
from lcrbnn.report.render.text import escape_html, make_link

# With this policy, a browser loads nothing from outside and runs no scripts, whatever the page contains.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_html(report: Report) -> str:
    """Return the text of the complete HTML file."""
    chart_ids = (f"chart-{i}" for i in range(1, 1000))
    body = "\n".join(_render_section(section, chart_ids) for section in report.sections)
    entries = "".join(f'<li><a href="#{make_anchor(s)}">{escape_html(s.title)}</a></li>' for s in report.sections)
    title = escape_html(report.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{COLORS_CSS}{CHARTS_CSS}{PAGE_CSS}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="lead">{escape_html(report.introduction)}</p>\n</header>\n'
        f'<nav aria-label="Contents"><ul>{entries}</ul></nav>\n<main>\n{body}\n</main>\n</body>\n</html>\n'
    )


def make_anchor(section: Section) -> str:
    """Return the id of a section, for links within the page."""
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


def _render_section(section: Section, chart_ids: Iterator[str]) -> str:
    parts = []
    for are_charts, group in groupby(section.elements, key=lambda element: isinstance(element, Chart)):
        rendered = [_render_element(element, chart_ids) for element in group]
        parts += ['<div class="charts">', *rendered, "</div>"] if are_charts else rendered
    content = "\n".join(parts)
    anchor = make_anchor(section)
    heading = f'<h2 id="{anchor}">{escape_html(section.title)}</h2>'
    return f'<section aria-labelledby="{anchor}">\n{heading}\n{content}\n</section>'


def _render_element(element: Element, chart_ids: Iterator[str]) -> str:
    return _render_chart(element, next(chart_ids)) if isinstance(element, Chart) else RENDERERS[type(element)](element)


def _render_chart(chart: LineChart | DotChart | HeatMap | Histogram, chart_id: str) -> str:
    return (
        f"<figure>{_render_caption(chart.title, chart.description)}{render_svg(chart, chart_id)}"
        f"<details><summary>Numbers</summary>{_render_table(tabulate_chart(chart))}</details></figure>"
    )


def _render_caption(title: str, description: str) -> str:
    return f"<figcaption><b>{escape_html(title)}</b> <span>{escape_html(description)}</span></figcaption>"


def _render_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{_render_cell(row[0])}</th>'
        f"{''.join(f'<td>{_render_cell(cell)}</td>' for cell in row[1:])}</tr>\n"
        for row in table.rows
    )
    css_class = ' class="numbers"' if table.is_numeric else ""
    return (
        f'<div class="scroll" role="region" aria-label="{escape_html(table.title)}" tabindex="0"><table{css_class}>'
        f"<caption>{escape_html(table.title)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _render_cell(cell: Cell) -> str:
    if isinstance(cell, Link):
        return f'<a href="{escape_html(make_link(cell.target))}">{escape_html(cell.text)}</a>'
    return escape_html(cell)


def _render_gallery(gallery: Gallery) -> str:
    items = "".join(
        f'<li><img alt="{escape_html(image.label)}" src="data:image/png;base64,{base64.b64encode(image.png).decode()}">'
        f"{escape_html(image.label)}</li>\n"
        for image in gallery.images
    )
    return f'<figure>{_render_caption(gallery.title, gallery.description)}<ul class="gallery">{items}</ul></figure>'


def _render_hint(hint: CommandHint) -> str:
    return f'<p class="hint">{escape_html(hint.text)} <code>{escape_html(hint.command)}</code></p>'


RENDERERS: dict[type, Callable[[Any], str]] = {
    str: lambda text: f"<p>{escape_html(text)}</p>",
    Table: _render_table,
    Gallery: _render_gallery,
    CommandHint: _render_hint,
}
