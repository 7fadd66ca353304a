"""A progress bar with an estimate of what is left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24  # characters of the bar


def duration(seconds: float) -> str:
    """A short human duration: "8 s", "3 min 20 s", "2 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Shows how much of `total` is done: on a terminal one line, redrawn; elsewhere a line for every tenth part."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        """Start the clock."""
        self.total = total
        self.done = 0
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.began = time.monotonic()

    def advance(self, note: str) -> None:
        """One more is done; `note` says what was seen."""
        before, self.done = self.done, self.done + 1
        spent = time.monotonic() - self.began
        left = duration(spent / self.done * (self.total - self.done))
        if self.live:
            filled = WIDTH * self.done // self.total
            bar = "#" * filled + "." * (WIDTH - filled)
            end = "\n" if self.done == self.total else ""
            self.stream.write(f"\r\x1b[K[{bar}] {self.done}/{self.total}  {note}  {left} left{end}")
        elif self.done * 10 // self.total > before * 10 // self.total:
            self.stream.write(f"{self.done}/{self.total}  {note}  {left} left\n")
        self.stream.flush()
