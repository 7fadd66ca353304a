"""Build programs in native/ together with the engine's sources, with special compiler flags, for tools and tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lcrbnn.errors import RunFailed

NATIVE = Path(__file__).parents[2] / "native"


def find_compiler() -> str | None:
    """Return the path of the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build_program(program: str, folder: Path, flags: tuple[str, ...]) -> Path:
    """Build native/{program}.cpp with the sources of the engine into a folder.

    If the same build exists there, use it.
    """
    match = re.search(r"set\(PARTS ([^)]+)\)", (NATIVE.parent / "CMakeLists.txt").read_text())
    sources = [*(match[1].split() if match else ()), program]
    command = [find_compiler() or "g++", "-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-fno-trapping-math"]
    command += ["-fno-math-errno", *flags]
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted(NATIVE.glob("*.h")):
        digest.update(path.read_bytes())

    def compile_source(part: str) -> Path:
        source = NATIVE / f"{part}.cpp"
        key = hashlib.sha256(digest.digest() + source.read_bytes()).hexdigest()[:16]
        target = folder / f"{part}-{key}.o"
        _compile_if_missing([*command, "-c", str(source)], target)
        return target

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        objects = list(pool.map(compile_source, sources))
    key = hashlib.sha256(" ".join(path.name for path in objects).encode()).hexdigest()[:16]
    target = folder / f"{program}-{key}"
    _compile_if_missing([*command, *map(str, objects), "-pthread"], target)
    return target


def _compile_if_missing(command: list[str], target: Path) -> None:
    """Run the compiler unless its output file exists. The output file is written atomically."""
    if target.exists():
        return
    temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
    process = subprocess.run([*command, "-o", str(temporary)], capture_output=True, text=True, check=False)
    if process.returncode:
        raise RunFailed(f"{target.name} cannot be built: {process.stderr[-2000:]}")
    temporary.replace(target)
