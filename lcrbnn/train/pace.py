"""How often the processes of a run agree: so rarely that it costs next to nothing, so often that a signal is heard."""

from __future__ import annotations

import math
import time

from lcrbnn.train.ranks import Ranks

SECONDS = 0.25  # from one agreement to the next
TIMES = 20  # or as many times as long as an agreement takes, if that is more: it takes less than 5 % of the host's time


class Pace:
    """Counts the steps to the next agreement. All processes come to the same number, which is part of the last one."""

    def __init__(self, ranks: Ranks, *, each: bool) -> None:
        """Agree after the first step; with `each`, or alone, after every one."""
        self.ranks, self.each = ranks, each or ranks.size == 1
        self.apart = 1  # steps
        self._next, self._since = 0, time.monotonic()
        self._last: int | None = None  # steps done at the last agreement

    def due(self, done: int) -> bool:
        """Whether it is time, after so many steps."""
        return done >= self._next

    def agree(self, done: int, *numbers: int) -> list[int]:
        """The largest of each number over all processes."""
        began = time.monotonic()
        *largest, self.apart = self.ranks.most(*numbers, self.apart)
        self._next, now = done + self.apart, time.monotonic()
        if not self.each and self._last is not None and done > self._last:
            speed = (done - self._last) / max(began - self._since, 1e-6)
            self.apart = math.ceil(speed * max(SECONDS, TIMES * (now - began)))  # what this one would have next time
        self._last, self._since = done, now
        return largest
