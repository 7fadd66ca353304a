"""Running a function of a test file in a process of its own, where Triton interprets its kernels on the CPU.

TRITON_INTERPRET must be set before Triton is imported, and torch's compiler may import it at any time; hence a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check_interpreted(check):
    """Assert that a row of tools.gpu.CHECKS finds nothing beyond its bound."""
    found = run_interpreted(check)
    assert found
    for case, error, bound in found:
        assert error <= bound, case


def run_interpreted(function):
    """What a module-level function without arguments returns or yields, as JSON, in an interpreting process."""
    code = f"import json, torch; from {function.__module__} import {function.__name__} as f; torch.manual_seed(0); "
    code += "found = f(); print(json.dumps(found if isinstance(found, dict) else list(found)))"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
