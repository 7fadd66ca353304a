"""`lcrbnn reproduce` in a checkout and in an installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paper.tests.test_reproduce import ROOT


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lcrbnn", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_the_command_works_in_a_checkout() -> None:
    process = run_command(ROOT, "reproduce", "real", "--from-records")
    assert (process.returncode, process.stderr) == (0, "")
    assert "`lcrbnn reproduce real`" in process.stdout


@pytest.mark.parametrize("arguments", [[], ["real"], ["--help"]], ids=str)
def test_the_command_of_an_installed_package_names_the_source_tree(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "lcrbnn").symlink_to(ROOT / "lcrbnn")  # a package without paper/ next to it
    program = (  # An editable installation would import the package of the checkout instead.
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]; "
        "sys.path.insert(0, '.'); from lcrbnn.cli.main import run; run()"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, "reproduce", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        "lcrbnn: lcrbnn reproduce needs the source tree: its folder paper/ is not part of the installed package. "
        "Clone the repository and run the command there\n"
    )
