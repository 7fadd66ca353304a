"""Programs of native/ built with the engine's sources and flags of their own, for tools and tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lcrbnn.errors import Failed

NATIVE = Path(__file__).parents[1] / "native"


def compiler() -> str | None:
    """Return the C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(program: str, folder: Path, flags: tuple[str, ...]) -> Path:
    """Build native/{program}.cpp with the engine's sources into a folder, unless just this was built there before."""
    listed = re.search(r"set\(PARTS ([^)]+)\)", (NATIVE.parent / "CMakeLists.txt").read_text())
    parts = [*(listed[1].split() if listed else ()), program]
    words = [compiler() or "g++", "-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-fno-trapping-math"]
    words += ["-fno-math-errno", *flags]
    digest = hashlib.sha256(" ".join(words).encode())
    for path in sorted(NATIVE.glob("*.h")):
        digest.update(path.read_bytes())

    def compiled(part: str) -> Path:
        source = NATIVE / f"{part}.cpp"
        key = hashlib.sha256(digest.digest() + source.read_bytes()).hexdigest()[:16]
        target = folder / f"{part}-{key}.o"
        _made([*words, "-c", str(source)], target)
        return target

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        objects = list(pool.map(compiled, parts))
    key = hashlib.sha256(" ".join(path.name for path in objects).encode()).hexdigest()[:16]
    target = folder / f"{program}-{key}"
    _made([*words, *map(str, objects), "-pthread"], target)
    return target


def _made(words: list[str], target: Path) -> None:
    """Make a file with the compiler if it is not there; it appears whole."""
    if target.exists():
        return
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    done = subprocess.run([*words, "-o", str(part)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{target.name} cannot be built: {done.stderr[-2000:]}")
    part.replace(target)
