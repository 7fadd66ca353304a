"""Test every kernel of the engine against simple loops over bits, natively or for ARM under qemu.

    python -m tools.native.engine_kernels [--cases 20000] [--compiler g++] [--target native|aarch64]
        [--record bench/records/engine/x.json]

`--target aarch64` needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.runs.record import write_record

NATIVE = Path(__file__).resolve().parents[2] / "native"
# dictionary: target -> (compiler, flags, command that runs the program)
TARGETS: dict[str, tuple[str | None, list[str], list[str]]] = {
    "native": (None, [], []),
    "aarch64": ("aarch64-linux-gnu-g++", ["-static"], ["qemu-aarch64"]),
}


def build_kernel_test(compiler: str, flags: list[str], folder: Path) -> Path:
    """Compile the program that tests the kernels, and return its path."""
    program = folder / "kernel_test"
    names = ("kernel_test.cpp", "bconv_*.cpp", "fconv*.cpp", "dispatch.cpp")
    sources = sorted(path for name in names for path in NATIVE.glob(name))
    _run([compiler, "-std=c++17", "-O3", "-Wall", "-Wextra", *flags, *map(str, sources), "-o", str(program)])
    return program


def parse_case_counts(text: str) -> dict[str, Any]:
    """Return the number of tested cases by kernel, as the program has printed them."""
    lines = re.findall(r"^(bconv|fconv) (\S+)\D+?(\d+) cases", text, re.M)
    counts = {name if kind == "bconv" else f"float {name}": int(count) for kind, name, count in lines}
    if not counts or "all good" not in text:
        raise InputError(f"the kernel test failed:  {text[-300:]}")
    return {"cases": counts}


def _run(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]} is not installed")
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise InputError(
            f"{Path(command[0]).name} exited with {process.returncode}: {(process.stdout + process.stderr)[-500:]}"
        )
    return process.stdout + process.stderr


def main() -> None:
    """Build and run the test, print its output and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--target", default="native", choices=sorted(TARGETS))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    cross, flags, runner = TARGETS[args.target]
    compiler = cross or args.compiler
    with tempfile.TemporaryDirectory() as folder:
        program = build_kernel_test(compiler, flags, Path(folder))
        text = _run([*runner, str(program), str(args.cases)])
    print(text, end="")
    settings = {"compiler": _run([compiler, "--version"]).splitlines()[0], "target": args.target, "cases": args.cases}
    if args.record:
        write_record(args.record, "kernels", settings, parse_case_counts(text))


if __name__ == "__main__":
    main()
