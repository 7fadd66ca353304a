"""A progress bar with an estimate of what is left; plain lines where there is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from lcrbnn.runs.terminal import escape_control_characters, redraw_line

WIDTH = 24  # characters of the bar
REDRAW = 0.1  # seconds between two drawings of it
RECENT = 1 / 4  # of the time so far that is of late
FINE = 1 / 64  # of the time so far: the least between two marks


def duration(seconds: float) -> str:
    """A short human duration: "8 s", "3 min 20 s", "2 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Shows how much of `total` is done, of which `done` was done before: on a terminal one line, redrawn.

    Elsewhere a line for every tenth part, or (`tenths` False) only those that `tell` is given.
    """

    def __init__(self, total: int, stream: TextIO | None = None, *, done: int = 0, tenths: bool = True) -> None:
        """Start the clock."""
        self.total = total
        self.before = self.done = done
        self.tenths = tenths
        self.stream: TextIO | None = sys.stderr if stream is None else stream
        self.live = self.stream is not None and self.stream.isatty()
        self.began = time.monotonic()
        self._drawn = -REDRAW
        self._marks = deque([(self.began, done)])  # when so much was done

    def left(self) -> str:
        """How long the rest will take at the pace of late or of the whole time, whichever is faster.

        Nothing is known before the first advance.
        """
        now = time.monotonic()
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT * (now - self.began):
            self._marks.popleft()
        paces = [(now - since) / (self.done - then) for since, then in self._since() if self.done > then]
        return duration(min(paces) * (self.total - self.done)) if paces else "?"

    def _since(self) -> list[tuple[float, int]]:
        """From where a pace is taken: of late, since what is slow at first may not stay so; and of all, for a stall."""
        return [self._marks[0], (self.began, self.before)]

    def advance(self, note: Callable[[], str]) -> None:
        """One more is done; `note` says what was seen, and is asked only if it will be shown."""
        tenth, self.done = self.done * 10 // self.total, self.done + 1
        now, last = time.monotonic(), self.done == self.total
        if now - self._marks[-1][0] >= FINE * (now - self.began):
            self._marks.append((now, self.done))
        if self.live and (last or now - self._drawn >= REDRAW):
            self._drawn = now
            filled = WIDTH * self.done // self.total
            bar = "#" * filled + "." * (WIDTH - filled)
            line = escape_control_characters(f"[{bar}] {self.done}/{self.total}  {self.left()} left  {note()}")
            width = shutil.get_terminal_size().columns  # a line that wraps cannot be drawn over
            self._write(line[: max(width - 1, 20)] + ("\n" if last else ""), redraw=True)
        elif not self.live and self.tenths and self.done * 10 // self.total > tenth:
            self._line(f"{self.done}/{self.total}  {note()}  {self.left()} left")

    def tell(self, line: str) -> None:
        """A plain line, with the time left: only where there is no bar that says the same, and no line a tenth."""
        if not self.live and not self.tenths:
            self._line(f"{line}  {self.left()} left")

    def say(self, line: str) -> None:
        """A line that must be seen: above the bar on a terminal."""
        self._line(line, redraw=self.live)

    def close(self) -> None:
        """Leave the bar as it is and begin a new line, if there is one to leave."""
        if self.live and self._drawn > 0 and self.done < self.total:
            self._write("\n")
            self._drawn = -REDRAW

    def _line(self, line: str, *, redraw: bool = False) -> None:
        self._write(line + "\n", redraw=redraw)

    def _write(self, text: str, *, redraw: bool = False) -> None:
        """Show it, if anybody looks: work goes on when the reader of a pipe is gone, or a terminal is closed."""
        if self.stream is None:
            return
        try:
            if redraw:
                redraw_line(self.stream, text)
            else:
                self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the latter: it was closed here
            self.stream, self.live = None, False
