"""Text for a terminal: control characters from files, names and options are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO

ERASE_LINE = "\r\x1b[K"  # moves the cursor to the start of its line and erases the line

# C0 without tab and newline, DEL and C1, marks and overrides of the writing direction, line separators of Unicode,
# surrogates, by which Python represents file names that are not UTF-8.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    """Return the text with unsafe characters escaped as in Python source, such as \\x1b; newlines and tabs stay."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class PrintableStream:
    """A text stream that escapes control characters in writes. All else is passed on to the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        """Wrap a stream."""
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the escaped text. Return the length of the given text."""
        self.stream.write(escape_control_characters(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped stream."""
        return getattr(self.stream, name)


def redraw_line(stream: TextIO, text: str) -> None:
    """Write escaped text in place of the current line of a terminal.

    This is the only way for a control sequence to a terminal; a PrintableStream would escape the sequence.
    """
    unwrapped = stream.stream if isinstance(stream, PrintableStream) else stream
    unwrapped.write(ERASE_LINE + escape_control_characters(text))
