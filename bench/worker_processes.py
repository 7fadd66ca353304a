"""Worker processes for benchmarks. A ready worker reports and then reads requests, one line of JSON per request."""

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

from lcrbnn.errors import RunFailed

ROOT = Path(__file__).parents[1]
# Maximum number of log lines, and of characters per line, that are shown if a worker fails
MAX_LOG_LINES, MAX_LOG_LINE_LENGTH = 12, 500
# folder of compiled code, which is kept between benchmarks
COMPILER_CACHE = Path(tempfile.gettempdir()) / "lcrbnn-bench-cache"


def count_cores() -> int:
    """Return the number of CPU cores of this machine."""
    return os.cpu_count() or 1


def make_compiler_environment(compile_threads: int, rehearsal: bool) -> dict[str, str]:
    """Return environment variables for a compiling worker, with the cache folder and the number of threads."""
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(COMPILER_CACHE),
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, compile_threads)),
    }
    return {**variables, "OMP_NUM_THREADS": "1"} if rehearsal else variables


class Worker:
    """The parent's view of a worker process. The stderr of the worker goes to a log file."""

    def __init__(
        self,
        module: str,
        job: Mapping[str, Any],
        log: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m"),
    ) -> None:
        """Start `program module job` with the job as JSON."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as log_file:
            self.process = subprocess.Popen(
                [*program, module, json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                cwd=ROOT,
                env={**os.environ, **environment},
            )

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the worker is ready or has failed. If it has failed, the next request raises the error."""
        self._read_line(timeout_s)

    def send_only_request(self, message: Any = None) -> None:
        """Send a single request and close the input of the worker. `wait_for_result` returns the response."""
        assert self.process.stdin is not None
        with suppress(OSError):  # the pipe is broken because the worker has failed
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.close()

    def request(self, message: Any, timeout_s: float) -> Any:
        """Send a request and return the response. Raise RunFailed if the worker fails or exceeds the timeout."""
        assert self.process.stdin is not None
        with suppress(OSError):  # the pipe is broken because the worker has failed
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        line = self._read_line(timeout_s)
        if not line:
            self.close()
            raise RunFailed(self._describe_failure())
        return json.loads(line)

    def wait_for_result(self, timeout_s: float) -> dict[str, Any]:
        """Wait until the worker has exited.

        Return its response, or {"error": ...} if it failed or exceeded the timeout.
        """
        line = self._read_line(timeout_s)
        self.close()
        return json.loads(line) if line else {"error": self._describe_failure()}

    def close(self) -> None:
        """Close the pipes and wait for the process. Kill it if it does not exit."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # closing fails if the worker has not read all of its input
                pipe.close()
        if self.process.poll() is None:
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _read_line(self, timeout_s: float) -> str:
        assert self.process.stdout is not None
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def _describe_failure(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last_lines = [line[:MAX_LOG_LINE_LENGTH] for line in lines[-MAX_LOG_LINES:]]
        return "\n".join([f"exited with {self.process.returncode}; the end of its log:", *last_lines])


def serve_requests(prepare: Callable[[dict[str, Any]], Callable[[Any], dict[str, Any]]]) -> None:
    """Run as a worker. Read the job from the command line, prepare it, report readiness, and serve each request."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries may print to stdout. Their text must not mix with the responses.
    try:
        handle_request = prepare(json.loads(sys.argv[1]))
        responses.write("ready\n")
        responses.flush()
        for line in sys.stdin:
            responses.write(json.dumps(handle_request(json.loads(line))) + "\n")
            responses.flush()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
