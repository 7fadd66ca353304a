"""Check under ThreadSanitizer that several threads can share a model, and compare the bits of their outputs.

    python -m tools.native.thread_sanitizer [--threads 8] [--calls 1000] [--record FILE]

The tool builds native/race.cpp with the engine's sources under ThreadSanitizer. Calls differ in images, batch size and
number of threads, and each must give the same bits as a call on a single thread. The exit code is 1 if an output
differs or a data race is found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.bnn_file import write_model
from lcrbnn.errors import RunFailed
from lcrbnn.runs.record import write_record
from tests.deploy.engine.small_models import make_model_with_every_op
from tools.native.build import build_program, find_compiler

SANITIZER_FLAGS = ("-fsanitize=thread",)
SANITIZER_ENVIRONMENT = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}


def run_threads(program: Path, model: Path, threads: int, calls: int) -> dict[str, Any]:
    """Run the threads and return the counts.

    If a data race or a difference is found, raise RunFailed with the report.
    """
    command = [str(program), str(model), str(threads), str(calls)]
    if shutil.which("setarch"):  # setarch disables address randomization, which the sanitizer does not fully support
        command = ["setarch", platform.machine(), "-R", *command]
    process = subprocess.run(
        command, env={**os.environ, **SANITIZER_ENVIRONMENT}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise RunFailed(f"{process.stdout}{process.stderr[-6000:]}")
    return json.loads(process.stdout)


def main() -> int:
    """Build the program, run it, print the counts and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=8, help="number of threads that share a model")
    parser.add_argument("--calls", type=int, default=1000, help="number of calls per thread")
    parser.add_argument("--record", type=Path, help="write the result to this JSON file")
    args = parser.parse_args()
    if not find_compiler():
        print("there is no C++ compiler", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model.bnn"
        write_model(model, make_model_with_every_op(np.random.default_rng(0)))
        start_s = time.monotonic()
        try:
            figures = run_threads(
                build_program("race", Path(scratch), SANITIZER_FLAGS), model, args.threads, args.calls
            )
        except RunFailed as error:
            print(error, file=sys.stderr)
            return 1
        figures["seconds"] = round(time.monotonic() - start_s, 1)
    print(", ".join(f"{key} {value}" for key, value in figures.items()))
    if args.record:
        settings = {"threads": args.threads, "calls": args.calls, "flags": list(SANITIZER_FLAGS), "model": "every op"}
        write_record(args.record, "race", settings, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
