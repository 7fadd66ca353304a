"""SIGTERM, SIGINT and SIGHUP ask a run to stop; it saves first. A second SIGINT does not wait."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from lcrbnn.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: the terminal or the connection is closed
GOING_ON = "the same command goes on (train: with --resume)"


class StopRequest:
    """Inside, the signals only leave a note here; `check` raises Stopped if there is one."""

    def __init__(self, *, patient: bool = False) -> None:
        """No note yet. A patient one waits after a second SIGINT too: a launcher repeats the one of the keyboard."""
        self.number: int | None = None
        self.patient = patient
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise Stopped if a signal came."""
        if self.number is not None:
            raise Stopped(f"stopped by {self._name()} and saved; {GOING_ON}", self.number)

    def check_lost(self) -> None:
        """Raise Stopped if a signal came; for use when another process of the run ended before this one could save."""
        if self.number is not None:
            reason = "another process of this run ended first"
            raise Stopped(f"stopped by {self._name()}, without a new checkpoint: {reason}; {GOING_ON}", self.number)

    def _name(self) -> str:
        return signal.Signals(self.number or 0).name

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT and not self.patient:
            raise KeyboardInterrupt
        self.number = number

    def __enter__(self) -> StopRequest:
        """Listen, if this is the main thread; elsewhere signals cannot be heard and go where they went before."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup started this process
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Listen no more."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
