"""Print safely to a terminal. Control characters in names, paths and options are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO

ERASE_LINE = "\r\x1b[K"  # control characters that move the cursor to the start of the line and erase the line

# These characters are escaped: C0 control characters except tab and newline, DEL, C1 control characters, marks and
# overrides of the writing direction, line separators of Unicode, and surrogates. In Python, surrogates represent file
# names that are not UTF-8.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    """Return the text with unsafe characters escaped as in Python source, such as \\x1b. Newlines and tabs are kept."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class PrintableStream:
    """A text stream that escapes control characters before it writes them.

    Other attributes are those of the wrapped stream.
    """

    def __init__(self, stream: TextIO) -> None:
        """Wrap a stream."""
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the escaped text. Return the length of the original text."""
        self.stream.write(escape_control_characters(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line with control characters escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped stream."""
        return getattr(self.stream, name)


def redraw_line(stream: TextIO, text: str) -> None:
    """Replace the current line of a terminal by this text, which is escaped.

    This is the only function that sends a control sequence to a terminal. A PrintableStream would escape the sequence.
    """
    unwrapped = stream.stream if isinstance(stream, PrintableStream) else stream
    unwrapped.write(ERASE_LINE + escape_control_characters(text))
