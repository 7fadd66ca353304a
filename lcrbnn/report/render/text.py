"""Escape text from files for HTML, XML and links, and format numbers for reports."""

from __future__ import annotations

import html
import re
from urllib.parse import quote

_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """Return the text without characters that HTML and SVG must not contain or that change the writing direction."""
    return _UNSAFE_CHARACTERS.sub("\ufffd", text)


def escape_html(text: str) -> str:
    """Return the text escaped for HTML and XML, for use inside an element or between double quotes."""
    return html.escape(escape_controls(text), quote=True)


def make_link(path: str) -> str:
    """Return a relative path as a link target. Colons are escaped, so that none of them can start a URL scheme."""
    return quote(path, safe="/", errors="surrogateescape")


def shorten_name(text: str, max_length: int) -> str:
    """Return the last `max_length` characters of a name, because layer names differ at their ends."""
    return text if len(text) <= max_length else "…" + text[1 - max_length :]


def shorten_difference_name(text: str, max_length: int) -> str:
    """Return a difference "a − b" with both names shortened to equal lengths."""
    names = text.split(" − ")
    return (
        " − ".join(shorten_name(name, max_length // len(names)) for name in names) if len(text) > max_length else text
    )


def format_number(value: float, digits: int = 4) -> str:
    """Return a number with this many significant digits and a typographic minus sign."""
    text = f"{value:.{digits}g}"
    if "e" in text and 1e-4 <= abs(value) < 1e7:
        text = f"{value:,.0f}"
    return text.replace("-", "−")
