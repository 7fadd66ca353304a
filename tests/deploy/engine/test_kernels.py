"""Every kernel that this machine supports, and that of ARM under qemu, equals loops over bits."""

import os
import shutil
from pathlib import Path

import pytest

from lcrbnn.errors import InputError
from tools.native.engine_kernels import TARGETS, _run, build_kernel_test, parse_case_counts


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_equal_loops_over_bits(target: str, tmp_path: Path) -> None:
    cross, flags, runner = TARGETS[target]
    needed = [cross or "g++", *runner]
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{missing[0]} is not installed")  # CI has it
    program = build_kernel_test(cross or "g++", flags, tmp_path)
    num_cases = parse_case_counts(_run([*runner, str(program), "300"]))["cases"]
    assert num_cases["scalar"] > 300
    assert num_cases["float scalar"] == 100
    assert target != "aarch64" or num_cases["neon"] > 300


def test_a_failing_test_program_raises() -> None:
    with pytest.raises(InputError, match="the kernel test failed"):
        parse_case_counts("bconv scalar 3 cases\nFAILED\n")
    with pytest.raises(InputError, match="is not installed"):
        _run(["no-such-compiler"])
    with pytest.raises(InputError, match="false exited with 1"):
        _run(["false"])
