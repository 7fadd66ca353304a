"""Test every kernel of the engine against loops over bits, here and, under qemu, as an ARM would; a record each.

    python -m tools.kernels [--cases 20000] [--compiler g++] [--target native|aarch64] [--record results/engine/x.json]

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

NATIVE = Path(__file__).resolve().parents[1] / "native"
TARGETS: dict[str, tuple[str | None, list[str], list[str]]] = {  # compiler, its flags, what runs the program
    "native": (None, [], []),
    "aarch64": ("aarch64-linux-gnu-g++", ["-static"], ["qemu-aarch64"]),
}


def build(compiler: str, flags: list[str], folder: Path) -> Path:
    """Compile the test program of the kernels."""
    program = folder / "kernel_test"
    names = ("kernel_test.cpp", "bconv_*.cpp", "fconv*.cpp", "dispatch.cpp")
    sources = sorted(path for name in names for path in NATIVE.glob(name))
    _run([compiler, "-std=c++17", "-O3", "-Wall", "-Wextra", *flags, *map(str, sources), "-o", str(program)])
    return program


def figures(text: str) -> dict[str, Any]:
    """Cases by kernel, from what the program prints."""
    lines = re.findall(r"^(bconv|fconv) (\S+)\D+?(\d+) cases", text, re.M)
    found = {name if kind == "bconv" else f"float {name}": int(count) for kind, name, count in lines}
    if not found or "all good" not in text:
        raise InputError(f"the test of the kernels did not end well: {text[-300:]}")
    return {"cases": found}


def _run(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"{Path(command[0]).name} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout + done.stderr


def main() -> None:
    """Build, run, print, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--target", default="native", choices=sorted(TARGETS))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    cross, flags, runner = TARGETS[args.target]
    compiler = cross or args.compiler
    with tempfile.TemporaryDirectory() as folder:
        program = build(compiler, flags, Path(folder))
        text = _run([*runner, str(program), str(args.cases)])
    print(text, end="")
    settings = {"compiler": _run([compiler, "--version"]).splitlines()[0], "target": args.target, "cases": args.cases}
    if args.record:
        write_record(args.record, "kernels", settings, figures(text))


if __name__ == "__main__":
    main()
