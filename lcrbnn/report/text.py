"""Text that came from files, made safe to stand in a page; numbers as the report writes them."""

from __future__ import annotations

import html
import re
from urllib.parse import quote

_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Without characters that a page or an SVG file may not hold, or that turn the direction of writing."""
    return _ODD.sub("\ufffd", text)


def escaped(text: str) -> str:
    """As HTML and XML hold it, inside an element or between double quotes."""
    return html.escape(plain(text), quote=True)


def address(path: str) -> str:
    """A relative path as a link's target; a colon in it starts no scheme."""
    return quote(path, safe="/", errors="surrogateescape")


def short(text: str, most: int) -> str:
    """At most so many characters, the last ones kept: they tell layers apart."""
    return text if len(text) <= most else "…" + text[1 - most :]


def short_pair(text: str, most: int) -> str:
    """The same of a difference, "a − b": of both names the last letters."""
    names = text.split(" − ")
    return " − ".join(short(name, most // len(names)) for name in names) if len(text) > most else text


def figure(value: float, digits: int = 4) -> str:
    """A number with so many digits that count, and a minus sign that is one."""
    text = f"{value:.{digits}g}"
    if "e" in text and 1e-4 <= abs(value) < 1e7:
        text = f"{value:,.0f}"
    return text.replace("-", "−")
