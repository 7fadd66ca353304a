"""SIGTERM and SIGINT ask a run to stop; it saves first. A second SIGINT does not wait."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from lcrbnn.errors import Stopped

GOING_ON = "the same command goes on (train: with --resume)"


class StopRequest:
    """Inside, the two signals only leave a note here; `check` raises Stopped if there is one."""

    def __init__(self, *, patient: bool = False) -> None:
        """No note yet. A patient one waits after a second SIGINT too: a launcher repeats the one of the keyboard."""
        self.number: int | None = None
        self.patient = patient
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise Stopped if a signal came."""
        if self.number is not None:
            name = signal.Signals(self.number).name
            raise Stopped(f"stopped by {name} and saved; {GOING_ON}", self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT and not self.patient:
            raise KeyboardInterrupt
        self.number = number

    def __enter__(self) -> StopRequest:
        """Listen, if this is the main thread; elsewhere signals cannot be heard and go where they went before."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Listen no more."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
