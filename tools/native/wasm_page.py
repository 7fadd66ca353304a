"""Build the engine as WebAssembly, and a folder for any web server with a page that runs a network on images.

    python -m tools.native.wasm_page [--model zoo:resnet20-double-irnet] [-o build/page]

It needs clang, lld and the C and C++ libraries of WASI (Debian: clang lld wasi-libc libc++-dev-wasm32
libclang-rt-dev-wasm32). Open the page with `python -m http.server -d build/page`, because browsers do not load
modules from local files.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from lcrbnn.errors import InputError, RunFailed

ROOT = Path(__file__).parents[2]
WEB_FOLDER = ROOT / "web"
EXPORTED_FUNCTIONS = (
    "open_memory",
    "close",
    "get_info",
    "class_name",
    "node_kernel",
    "output_name",
    "output_shape",
    "run",
    "run_pixels",
)  # names of the exported functions of the C interface
COMPILER_FLAGS = (
    "--target=wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-std=c++17", "-O3", "-fno-exceptions",
    "-ffp-contract=off", "-fvisibility=hidden", "-Wl,--strip-all", "-Wl,--export=malloc", "-Wl,--export=free",
)  # fmt: skip
WASI_LIBRARIES = ("/usr/lib/wasm32-wasi/libc.a", "/usr/lib/wasm32-wasi/libc++.a")  # paths of the libraries on Debian

# Names of the Debian packages that a build needs
DEBIAN_PACKAGES = "clang lld wasi-libc libc++-dev-wasm32 libclang-rt-dev-wasm32"


def find_missing_tools() -> str:
    """Return the tools that a build needs and that are missing, as text. If none is missing, the text is empty."""
    programs = [name for name in ("clang++", "wasm-ld") if shutil.which(name) is None]
    return ", ".join([*programs, *(path for path in WASI_LIBRARIES if not Path(path).exists())])


def check_tools() -> None:
    """Raise RunFailed if a tool that a build needs is missing."""
    if missing := find_missing_tools():
        needs = f"clang, lld and the C and C++ libraries of WASI (Debian: {DEBIAN_PACKAGES})"
        raise RunFailed(f"the WebAssembly engine cannot be built: {missing} is missing; it needs {needs}")


def list_engine_sources() -> list[str]:
    """Return the source files of the engine, as listed in CMakeLists.txt."""
    match = re.search(r"set\(PARTS ([^)]+)\)", (ROOT / "CMakeLists.txt").read_text())
    return [str(ROOT / "native" / f"{part}.cpp") for part in (match[1].split() if match else ())]


def build_engine(target: Path) -> None:
    """Compile the engine to WebAssembly. The output file is written atomically."""
    check_tools()
    sources = list_engine_sources()
    exports = [f"-Wl,--export=lcrbnn_{name}" for name in EXPORTED_FUNCTIONS]
    temporary = target.with_name(target.name + ".part")
    process = subprocess.run(
        ["clang++", *COMPILER_FLAGS, *exports, *sources, "-o", str(temporary)], capture_output=True, text=True
    )
    if process.returncode:
        temporary.unlink(missing_ok=True)
        raise RunFailed(f"the WebAssembly engine cannot be built: {process.stderr[-1000:]}")
    temporary.replace(target)


def build_page(folder: Path, model: bytes | None = None) -> None:
    """Write the page, its script, the engine and, if there is one, a network (model.bnn) into a folder."""
    check_tools()
    folder.mkdir(parents=True, exist_ok=True)
    build_engine(folder / "engine.wasm")
    for path in sorted(WEB_FOLDER.iterdir()):
        shutil.copyfile(path, folder / path.name)
    if model is not None:
        (folder / "model.bnn").write_bytes(model)


def main(argv: list[str] | None = None) -> int:
    """Build the page and print the file sizes."""
    from lcrbnn.cli.model_arguments import BNN_MODEL_HELP, load_bnn_model

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("zoo:resnet20-double-irnet"), help=BNN_MODEL_HELP)
    parser.add_argument("-o", "--out", type=Path, default=Path("build/page"), metavar="FOLDER")
    args = parser.parse_args(argv)
    try:
        _, source = load_bnn_model(args.model)
        build_page(args.out, source if isinstance(source, bytes) else source.read_bytes())
    except (RunFailed, InputError) as error:
        print(f"page: {error}", file=sys.stderr)
        return 2
    for path in sorted(args.out.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
