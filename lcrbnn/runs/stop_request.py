"""SIGTERM, SIGINT and SIGHUP stop a run after it has saved a checkpoint. A second SIGINT stops it immediately."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from lcrbnn.errors import StopSignal

# SIGHUP means that the terminal or the connection was closed
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
RESUME_HINT = "run the same command again to continue (train: with --resume)"


class StopRequest:
    """A context manager that notes stop signals. After a signal, `raise_if_requested` raises StopSignal."""

    def __init__(self, *, ignore_repeated_sigint: bool = False) -> None:
        """Start without a signal.

        Processes of a launcher ignore a second SIGINT, because the launcher repeats the first one.
        """
        self.signal_number: int | None = None
        self.ignore_repeated_sigint = ignore_repeated_sigint
        self._previous_handlers: dict[int, Any] = {}

    def raise_if_requested(self) -> None:
        """Raise StopSignal if a signal was received."""
        if self.signal_number is not None:
            raise StopSignal(f"stopped by {self._signal_name()} and saved; {RESUME_HINT}", self.signal_number)

    def raise_if_requested_without_checkpoint(self) -> None:
        """Raise StopSignal if a signal was received, with a message that no checkpoint was saved.

        This is for the case that another process ended before this one could save.
        """
        if self.signal_number is not None:
            reason = "another process of this run ended first"
            raise StopSignal(
                f"stopped by {self._signal_name()}, without a new checkpoint: {reason}; {RESUME_HINT}",
                self.signal_number,
            )

    def _signal_name(self) -> str:
        return signal.Signals(self.signal_number or 0).name

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and signal_number == signal.SIGINT and not self.ignore_repeated_sigint:
            raise KeyboardInterrupt
        self.signal_number = signal_number

    def __enter__(self) -> StopRequest:
        """Install the signal handlers. Python allows this only in the main thread, so do nothing in other threads."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # leave the signal ignored, because the process was started with nohup
                self._previous_handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
