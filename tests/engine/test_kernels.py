"""Every kernel that can run here counts what loops over bits count; so does ARM's, under qemu."""

import os
import shutil
from pathlib import Path

import pytest

from lcrbnn.errors import InputError
from tools.kernels import TARGETS, _run, build, figures


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_agree_with_loops_over_bits(target: str, tmp_path: Path) -> None:
    cross, flags, runner = TARGETS[target]
    needed = [cross or "g++", *runner]
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{missing[0]} is not installed")  # only another processor's kernel needs it
    program = build(cross or "g++", flags, tmp_path)
    found = figures(_run([*runner, str(program), "300"]))["cases"]
    assert found["scalar"] > 300
    assert found["float scalar"] == 100
    assert target != "aarch64" or found["neon"] > 300


def test_a_program_that_fails_is_told() -> None:
    with pytest.raises(InputError, match="did not end well"):
        figures("bconv scalar 3 cases\nFAILED\n")
    with pytest.raises(InputError, match="is not installed"):
        _run(["no-such-compiler"])
    with pytest.raises(InputError, match="false ended with 1"):
        _run(["false"])
