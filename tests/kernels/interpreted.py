"""Running a function of a test file in a process of its own, where Triton interprets its kernels on the CPU.

TRITON_INTERPRET must be set before Triton is imported, and torch's compiler may import it at any time; hence a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_interpreted(function):
    """The JSON that a module-level function without arguments returns, computed in an interpreting process."""
    code = f"import json; from {function.__module__} import {function.__name__} as f; print(json.dumps(f()))"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
