"""A progress bar with an estimate of the time left.

If the output is not a terminal, plain lines are printed instead.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from lcrbnn.runs.terminal import escape_control_characters, redraw_line

BAR_WIDTH = 24  # width of the progress bar in characters
REDRAW_INTERVAL_S = 0.1  # minimum time in seconds between two updates of the progress bar
RECENT_FRACTION = 1 / 4  # fraction of the elapsed time over which the recent speed is measured
# minimum time between two marks for the recent speed, as a fraction of the time since the start
MARK_SPACING_FRACTION = 1 / 64


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as "8 s", "3 min 20 s" or "2 h 05 min"."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


class ProgressBar:
    """Shows how many of `total` steps are done. A resumed run begins with `num_done` steps.

    On a terminal, the bar is one line that is redrawn. Elsewhere, a line is printed after each tenth of the steps. With
    `print_tenths=False`, only `print_status` prints lines.
    """

    def __init__(
        self, total: int, stream: TextIO | None = None, *, num_done: int = 0, print_tenths: bool = True
    ) -> None:
        """Start to measure the time."""
        self.total = total
        self.num_done_at_start = self.num_done = num_done
        self.print_tenths = print_tenths
        self.stream: TextIO | None = sys.stderr if stream is None else stream
        self.is_terminal = self.stream is not None and self.stream.isatty()
        self.start_time = time.monotonic()
        self._last_redraw = -REDRAW_INTERVAL_S
        # each mark is a time, and the number of steps that were done at that time
        self._marks = deque([(self.start_time, num_done)])

    def format_time_left(self) -> str:
        """Return the estimated time left, or "?" before the first step.

        The estimate uses either the recent speed or the speed since the start, whichever is higher.
        """
        now = time.monotonic()
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT_FRACTION * (now - self.start_time):
            self._marks.popleft()
        seconds_per_step = [
            (now - mark_time) / (self.num_done - num_done_then)
            for mark_time, num_done_then in self._speed_marks()
            if self.num_done > num_done_then
        ]
        return format_duration(min(seconds_per_step) * (self.total - self.num_done)) if seconds_per_step else "?"

    def _speed_marks(self) -> list[tuple[float, int]]:
        """Return a recent mark and the start mark, between which the speed is measured.

        The recent mark is needed because the first steps may be slow.
        """
        return [self._marks[0], (self.start_time, self.num_done_at_start)]

    def advance(self, make_note: Callable[[], str]) -> None:
        """Count one more step. If a line will be shown, call `make_note` for a text about this step."""
        tenth, self.num_done = self.num_done * 10 // self.total, self.num_done + 1
        now, is_last = time.monotonic(), self.num_done == self.total
        if now - self._marks[-1][0] >= MARK_SPACING_FRACTION * (now - self.start_time):
            self._marks.append((now, self.num_done))
        if self.is_terminal and (is_last or now - self._last_redraw >= REDRAW_INTERVAL_S):
            self._last_redraw = now
            filled = BAR_WIDTH * self.num_done // self.total
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            line = escape_control_characters(
                f"[{bar}] {self.num_done}/{self.total}  {self.format_time_left()} left  {make_note()}"
            )
            width = shutil.get_terminal_size().columns  # a line that is too long wraps, and then it cannot be redrawn
            self._write(line[: max(width - 1, 20)] + ("\n" if is_last else ""), redraw=True)
        elif not self.is_terminal and self.print_tenths and self.num_done * 10 // self.total > tenth:
            self._write_line(f"{self.num_done}/{self.total}  {make_note()}  {self.format_time_left()} left")

    def print_status(self, line: str) -> None:
        """Print a line with the time left, unless a bar or the lines after each tenth already show the time left."""
        if not self.is_terminal and not self.print_tenths:
            self._write_line(f"{line}  {self.format_time_left()} left")

    def print_line(self, line: str) -> None:
        """Always print a line. On a terminal, it appears above the bar."""
        self._write_line(line, redraw=self.is_terminal)

    def close(self) -> None:
        """End the line of a bar that is not full."""
        if self.is_terminal and self._last_redraw > 0 and self.num_done < self.total:
            self._write("\n")
            self._last_redraw = -REDRAW_INTERVAL_S

    def _write_line(self, line: str, *, redraw: bool = False) -> None:
        self._write(line + "\n", redraw=redraw)

    def _write(self, text: str, *, redraw: bool = False) -> None:
        """Write to the stream. If the reader has gone or the terminal is closed, stop writing without an error."""
        if self.stream is None:
            return
        try:
            if redraw:
                redraw_line(self.stream, text)
            else:
                self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # ValueError means that this process has closed the stream
            self.stream, self.is_terminal = None, False
