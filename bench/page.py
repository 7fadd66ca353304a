"""The engine of a page against ONNX Runtime Web, both as WebAssembly in node, one image a call.

    python -m bench.page [--calls 60] [--modules FOLDER] [--record results/bench/page.json]

Takes node, npm and what tools.page takes. `--modules` is a folder whose node_modules has onnxruntime-web; without it
the package is fetched into a temporary folder. Each runtime in a process of its own, a few calls in turn, medians. Ours
has one thread; theirs has one, or two. The binary network runs in both, with the answers compared; its full-precision
twin, as it is and in 8 bits, in theirs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.deployed import DEPLOYED
from bench.engine import READY, apart, figures_of, in_turns, show
from bench.processes import ROOT, Worker
from lcrbnn.engine.format import to_bytes
from lcrbnn.errors import Failed
from lcrbnn.export.onnx import to_onnx
from lcrbnn.peers.onnx_runtime import quantized
from lcrbnn.runs.record import write_record
from tools.page import build_page

CASES = ("resnet18", "resnet20")  # of bench.deployed
PACKAGE = "onnxruntime-web"


class Entry(NamedTuple):
    """One process: the runtime, which of the files it runs, and its threads."""

    runtime: str
    file: str
    threads: int


ENTRIES = {
    "lcrbnn": Entry("lcrbnn", "binary.bnn", 1),
    "onnxruntime-web int8": Entry(PACKAGE, "int8.onnx", 1),
    "onnxruntime-web int8, 2 threads": Entry(PACKAGE, "int8.onnx", 2),
    "onnxruntime-web": Entry(PACKAGE, "real.onnx", 1),
    "onnxruntime-web, 2 threads": Entry(PACKAGE, "real.onnx", 2),
    "onnxruntime-web, binary network": Entry(PACKAGE, "binary.onnx", 1),
}


def main() -> None:
    """Measure, print tables, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=60, help="of each runtime, at least")
    parser.add_argument("--modules", type=Path, help=f"a folder whose node_modules has {PACKAGE}")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise Failed(f"{tool} is not installed")
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        modules = args.modules or fetched(folder / "modules")
        build_page(folder / "page")
        for case in args.only:
            figures[case] = measure(case, folder, modules, args.calls)
            show(case, figures[case])
    package = json.loads((modules / "node_modules" / PACKAGE / "package.json").read_text())
    settings = {
        "calls": args.calls,
        "versions": {
            "node": subprocess.check_output(["node", "--version"], text=True).strip(),
            PACKAGE: package["version"],
        },
    }
    if args.record:
        write_record(args.record, "page", settings, figures)


def fetched(folder: Path) -> Path:
    """The other runtime, in a folder of its own."""
    folder.mkdir()
    subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), PACKAGE], check=True)
    return folder


def write_files(case: str, folder: Path) -> tuple[int, int, int]:
    """Both networks as both runtimes read them, and an image as each has it; its shape."""
    folder.mkdir()
    models = {kind: made() for kind, made in DEPLOYED[case].models.items()}
    (folder / "binary.bnn").write_bytes(to_bytes(models["binary"]))
    for kind, model in models.items():
        (folder / f"{kind}.onnx").write_bytes(to_onnx(model))
    (folder / "int8.onnx").write_bytes(quantized(models["real"]))
    image = np.random.default_rng(0).standard_normal(models["binary"].shape, np.float32)
    (folder / "last.bin").write_bytes(image.tobytes())
    (folder / "first.bin").write_bytes(np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes())
    return models["binary"].shape


def measure(case: str, folder: Path, modules: Path, calls: int) -> dict[str, Any]:
    """All entries on one network, in turns."""
    home = folder / case
    shape = write_files(case, home)
    workers = {}
    try:
        for name, entry in ENTRIES.items():
            job = {"runtime": entry.runtime, "model": str(home / entry.file), "threads": entry.threads, "shape": shape}
            job |= {"engine": str(folder / "page"), "modules": str(modules), "answers": str(home / f"{name}.bin")}
            job["images"] = [str(home / "last.bin"), str(home / "first.bin")]
            script = str(ROOT / "bench" / "one_page.mjs")
            workers[name] = Worker(script, job, home / f"{name}.log", {}, program=("node",))
            workers[name].ready(READY)
        taken, last = in_turns(workers, calls)
    finally:
        for worker in workers.values():
            worker.end()
    ours = statistics.median(taken["lcrbnn"])
    answers = [np.fromfile(home / f"{n}.bin", np.float32) for n, e in ENTRIES.items() if e.file.startswith("binary")]
    return {"apart": apart(answers), **{name: figures_of(ms, ours, last[name]) for name, ms in taken.items()}}


if __name__ == "__main__":
    main()
