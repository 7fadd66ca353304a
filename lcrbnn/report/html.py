"""A report as one page of HTML: no scripts, nothing that is fetched from anywhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from lcrbnn.report.charts import (
    Cell,
    Chart,
    Dots,
    Gallery,
    HeatMap,
    Hint,
    Histogram,
    Lines,
    Link,
    Part,
    Report,
    Section,
    Table,
)
from lcrbnn.report.style import CHARTS, COLORS, PAGE
from lcrbnn.report.svg import draw
from lcrbnn.report.text import address, escaped
from lcrbnn.report.words import numbers

# A browser that reads this fetches nothing and runs nothing, whatever the page says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(report: Report) -> str:
    """The whole file."""
    names = (f"chart-{i}" for i in range(1, 1000))
    body = "\n".join(_section(section, names) for section in report.sections)
    entries = "".join(f'<li><a href="#{anchor(s)}">{escaped(s.title)}</a></li>' for s in report.sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(report.title)}</title>\n<style>\n{COLORS}{CHARTS}{PAGE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escaped(report.title)}</h1>\n<p class="lead">{escaped(report.lead)}</p>\n</header>\n'
        f'<nav aria-label="Contents"><ul>{entries}</ul></nav>\n<main>\n{body}\n</main>\n</body>\n</html>\n'
    )


def anchor(section: Section) -> str:
    """What a link inside the page calls it."""
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


def _section(section: Section, names: Iterator[str]) -> str:
    parts = []
    for together, group in groupby(section.parts, key=lambda part: isinstance(part, Chart)):
        made = [_part(part, names) for part in group]
        parts += ['<div class="charts">', *made, "</div>"] if together else made
    inside = "\n".join(parts)
    name = anchor(section)
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escaped(section.title)}</h2>\n{inside}\n</section>'


def _part(part: Part, names: Iterator[str]) -> str:
    return _chart(part, next(names)) if isinstance(part, Chart) else PARTS[type(part)](part)


def _chart(chart: Lines | Dots | HeatMap | Histogram, name: str) -> str:
    return (
        f"<figure>{_caption(chart.title, chart.about)}{draw(chart, name)}"
        f"<details><summary>Numbers</summary>{_table(numbers(chart))}</details></figure>"
    )


def _caption(title: str, about: str) -> str:
    return f"<figcaption><b>{escaped(title)}</b> <span>{escaped(about)}</span></figcaption>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escaped(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])}</tr>\n'
        for row in table.rows
    )
    kind = ' class="numbers"' if table.numbers else ""
    return (
        f'<div class="scroll" role="region" aria-label="{escaped(table.title)}" tabindex="0"><table{kind}>'
        f"<caption>{escaped(table.title)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, Link):
        return f'<a href="{escaped(address(cell.target))}">{escaped(cell.text)}</a>'
    return escaped(cell)


def _gallery(gallery: Gallery) -> str:
    pictures = "".join(
        f'<li><img alt="{escaped(one.label)}" src="data:image/png;base64,{base64.b64encode(one.png).decode()}">'
        f"{escaped(one.label)}</li>\n"
        for one in gallery.pictures
    )
    return f'<figure>{_caption(gallery.title, gallery.about)}<ul class="pictures">{pictures}</ul></figure>'


def _hint(hint: Hint) -> str:
    return f'<p class="hint">{escaped(hint.text)} <code>{escaped(hint.command)}</code></p>'


PARTS: dict[type, Callable[[Any], str]] = {
    str: lambda text: f"<p>{escaped(text)}</p>",
    Table: _table,
    Gallery: _gallery,
    Hint: _hint,
}
