"""Do many threads that share a model disturb each other? Runs them under ThreadSanitizer and compares the bits.

    python -m tools.race [--threads 8] [--calls 1000] [--record FILE]

Builds native/race.cpp with the engine's sources under ThreadSanitizer. Calls differ in images, batch and the threads
they ask for; each must give the bits that one thread gives alone. Exits with 1 if any differs or a race is found.
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

from lcrbnn.engine.format import write_model
from lcrbnn.errors import Failed
from lcrbnn.runs.record import write_record
from tests.engine import every_op
from tools.build import build, compiler

RACES = ("-fsanitize=thread",)
OPTIONS = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}


def race(program: Path, model: Path, threads: int, calls: int) -> dict[str, Any]:
    """Run the threads; Failed tells what was found."""
    words = [str(program), str(model), str(threads), str(calls)]
    if shutil.which("setarch"):  # the sanitizer knows fewer layouts of memory than a kernel may choose
        words = ["setarch", platform.machine(), "-R", *words]
    done = subprocess.run(words, env={**os.environ, **OPTIONS}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{done.stdout}{done.stderr[-6000:]}")
    return json.loads(done.stdout)


def main() -> int:
    """Build, run, print, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=8, help="that share a model")
    parser.add_argument("--calls", type=int, default=1000, help="of each of them")
    parser.add_argument("--record", type=Path, help="write the outcome into this JSON file")
    args = parser.parse_args()
    if not compiler():
        print("there is no C++ compiler", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model.bnn"
        write_model(model, every_op(np.random.default_rng(0)))
        began = time.monotonic()
        try:
            figures = race(build("race", Path(scratch), RACES), model, args.threads, args.calls)
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
        figures["seconds"] = round(time.monotonic() - began, 1)
    print(", ".join(f"{key} {value}" for key, value in figures.items()))
    if args.record:
        settings = {"threads": args.threads, "calls": args.calls, "flags": list(RACES), "model": "every op"}
        write_record(args.record, "race", settings, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
