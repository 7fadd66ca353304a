"""Work in processes of its own: each says when it is ready, waits for its turn or turns, and answers, in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lcrbnn.errors import Failed

ROOT = Path(__file__).parents[1]
SHOWN, WIDE = 12, 500  # lines of the log of one that failed, and letters of each
CACHE = Path(tempfile.gettempdir()) / "lcrbnn-bench-cache"  # of the compiler: another call finds it filled


def cores() -> int:
    """Of this machine."""
    return os.cpu_count() or 1


def environment(compilers: int, rehearsal: bool) -> dict[str, str]:
    """What a process that compiles is to know: where the cache is, and how many compilers it may start."""
    chosen = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE), "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, compilers))}
    return {**chosen, "OMP_NUM_THREADS": "1"} if rehearsal else chosen


class Worker:
    """The outside of a process. What it prints goes to a log."""

    def __init__(
        self,
        module: str,
        job: Mapping[str, Any],
        log: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m"),
    ) -> None:
        """Start it: what runs it, its name, and the job as its argument."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as kept:
            self.process = subprocess.Popen(
                [*program, module, json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=kept,
                text=True,
                cwd=ROOT,
                env={**os.environ, **environment},
            )

    def ready(self, seconds: float) -> None:
        """Wait until it is, or has failed: then `answer` says so."""
        self._line(seconds)

    def go(self, told: Any = None) -> None:
        """It is its turn."""
        assert self.process.stdin is not None
        with suppress(OSError):  # it has failed
            self.process.stdin.write(json.dumps(told) + "\n")
            self.process.stdin.close()

    def ask(self, told: Any, seconds: float) -> Any:
        """One turn of several: what it finds. Failed if it does not answer in time; it has ended then."""
        assert self.process.stdin is not None
        with suppress(OSError):  # it has failed
            self.process.stdin.write(json.dumps(told) + "\n")
            self.process.stdin.flush()
        line = self._line(seconds)
        if not line:
            self.end()
            raise Failed(self._failure())
        return json.loads(line)

    def answer(self, seconds: float) -> dict[str, Any]:
        """What it found, when it has ended; {"error": ...} if it failed or took longer than that."""
        line = self._line(seconds)
        self.end()
        return json.loads(line) if line else {"error": self._failure()}

    def end(self) -> None:
        """Make sure that it has ended, and close what led to it."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # it has not taken all that it was told
                pipe.close()
        if self.process.poll() is None:
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _line(self, seconds: float) -> str:
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def _failure(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        shown = [line[:WIDE] for line in lines[-SHOWN:]]
        return "\n".join([f"ended with {self.process.returncode}; the end of its log:", *shown])


def work(prepare: Callable[[dict[str, Any]], Callable[[Any], dict[str, Any]]]) -> None:
    """The inside: prepare the job of the command line, say so; then do and answer what it is told, line by line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        do = prepare(json.loads(sys.argv[1]))
        answers.write("ready\n")
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(do(json.loads(line))) + "\n")
            answers.flush()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
