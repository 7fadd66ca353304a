"""Run a function of a test file in a separate process, in which Triton interprets its kernels on the CPU.

TRITON_INTERPRET must be set before Triton is imported. torch.compile may import Triton at any time, so a separate
process is necessary.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def assert_interpreted_within_bounds(check):
    """Assert that all errors reported by a check of tools.gpu_kernels are within their bounds."""
    findings = run_interpreted(check)
    assert findings
    for case, error, bound in findings:
        assert error <= bound, case


def run_interpreted(function):
    """Return what a module-level function without arguments returns or yields in an interpreting process."""
    code = f"import json, torch; from {function.__module__} import {function.__name__} as f; torch.manual_seed(0); "
    code += "result = f(); print(json.dumps(result if isinstance(result, dict) else list(result)))"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])
