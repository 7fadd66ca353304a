"""The engine as WebAssembly, with a page that runs a network on pictures: a folder to put on any web server.

    python -m tools.page [--model zoo:resnet20-double-irnet] [-o build/page]

Takes clang, lld and the C and C++ libraries of WASI (Debian: clang lld wasi-libc libc++-dev-wasm32
libclang-rt-dev-wasm32). Look at it with `python -m http.server -d build/page`: a browser loads no module from a file.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from lcrbnn.errors import Failed, InputError

ROOT = Path(__file__).parents[1]
WEB = ROOT / "web"
CALLS = ("open_memory", "close", "get_info", "class_name", "node_kernel", "run", "run_pixels")  # of the C interface
FLAGS = (
    "--target=wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-std=c++17", "-O3", "-fno-exceptions",
    "-ffp-contract=off", "-fvisibility=hidden", "-Wl,--strip-all", "-Wl,--export=malloc", "-Wl,--export=free",
)  # fmt: skip
LIBRARIES = ("/usr/lib/wasm32-wasi/libc.a", "/usr/lib/wasm32-wasi/libc++.a")  # where Debian has them

DEBIAN = "clang lld wasi-libc libc++-dev-wasm32 libclang-rt-dev-wasm32"  # its packages


def missing() -> str:
    """What a build needs and is not there; empty if all is."""
    programs = [name for name in ("clang++", "wasm-ld") if shutil.which(name) is None]
    return ", ".join([*programs, *(path for path in LIBRARIES if not Path(path).exists())])


def check_tools() -> None:
    """Raise if something that a build needs is not there."""
    if lacking := missing():
        needs = f"clang, lld and the C and C++ libraries of WASI (Debian: {DEBIAN})"
        raise Failed(f"the engine is not built for pages: {lacking} is missing; it takes {needs}")


def engine_sources() -> list[str]:
    """The engine's files, which CMakeLists.txt lists."""
    listed = re.search(r"set\(PARTS ([^)]+)\)", (ROOT / "CMakeLists.txt").read_text())
    return [str(ROOT / "native" / f"{part}.cpp") for part in (listed[1].split() if listed else ())]


def build_engine(target: Path) -> None:
    """Compile the engine; the file appears whole."""
    check_tools()
    sources = engine_sources()
    exports = [f"-Wl,--export=lcrbnn_{name}" for name in CALLS]
    part = target.with_name(target.name + ".part")
    done = subprocess.run(["clang++", *FLAGS, *exports, *sources, "-o", str(part)], capture_output=True, text=True)
    if done.returncode:
        part.unlink(missing_ok=True)
        raise Failed(f"the engine cannot be built for pages: {done.stderr[-1000:]}")
    part.replace(target)


def build_page(folder: Path, model: bytes | None = None) -> None:
    """Fill a folder: the page, its script, the engine, and a network as model.bnn."""
    check_tools()
    folder.mkdir(parents=True, exist_ok=True)
    build_engine(folder / "engine.wasm")
    for path in sorted(WEB.iterdir()):
        shutil.copyfile(path, folder / path.name)
    if model is not None:
        (folder / "model.bnn").write_bytes(model)


def main(argv: list[str] | None = None) -> int:
    """Build it and say how large it is."""
    from lcrbnn.cli._shipped import MODEL, find_model

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("zoo:resnet20-double-irnet"), help=MODEL)
    parser.add_argument("-o", "--out", type=Path, default=Path("build/page"), metavar="FOLDER")
    args = parser.parse_args(argv)
    try:
        _, source = find_model(args.model)
        build_page(args.out, source if isinstance(source, bytes) else source.read_bytes())
    except (Failed, InputError) as error:
        print(f"page: {error}", file=sys.stderr)
        return 2
    for path in sorted(args.out.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
