"""Compare the WebAssembly engine with ONNX Runtime Web. Both run in node, with one image per call.

    python -m bench.deploy.wasm_vs_onnxruntime_web [--calls 60] [--modules FOLDER] [--record bench/records/page.json]

It needs node, npm and the requirements of tools.native.wasm_page. `--modules` is a folder whose node_modules contains
onnxruntime-web; by default the package is installed into a temporary folder. Each runtime has its own process and makes
a few calls in turn; results are medians. The engine uses one thread, ONNX Runtime one or two. The binary network runs
in both, and the outputs are compared. The full-precision network runs in ONNX Runtime, in float32 and in 8 bits.
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

from bench.deploy.deployed_networks import ENGINE_CASES
from bench.deploy.engine_vs_runtimes import (
    READY_TIMEOUT_S,
    call_in_turns,
    max_relative_difference,
    print_table,
    summarize_runtime,
)
from bench.worker_processes import ROOT, Worker
from lcrbnn.deploy.benchmark.onnxruntime_backend import quantize_int8
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.export.onnx_writer import to_onnx
from lcrbnn.errors import RunFailed
from lcrbnn.runs.record import write_record
from tools.native.wasm_page import build_page

CASE_NAMES = ("resnet18", "resnet20")  # names of the compared networks, which are keys of ENGINE_CASES
PACKAGE = "onnxruntime-web"


class WasmEntry(NamedTuple):
    """One worker process, with its runtime, model file and number of threads."""

    runtime: str
    file: str
    threads: int


ENTRIES = {
    "lcrbnn": WasmEntry("lcrbnn", "binary.bnn", 1),
    "onnxruntime-web int8": WasmEntry(PACKAGE, "int8.onnx", 1),
    "onnxruntime-web int8, 2 threads": WasmEntry(PACKAGE, "int8.onnx", 2),
    "onnxruntime-web": WasmEntry(PACKAGE, "real.onnx", 1),
    "onnxruntime-web, 2 threads": WasmEntry(PACKAGE, "real.onnx", 2),
    "onnxruntime-web, binary network": WasmEntry(PACKAGE, "binary.onnx", 1),
}


def main() -> None:
    """Run the benchmark, print tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=60, help="minimum number of timed calls per runtime")
    parser.add_argument("--modules", type=Path, help=f"folder whose node_modules contains {PACKAGE}")
    parser.add_argument("--only", nargs="+", default=list(CASE_NAMES), choices=CASE_NAMES)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise RunFailed(f"{tool} is not installed")
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        modules = args.modules or install_onnxruntime_web(folder / "modules")
        build_page(folder / "page")
        for case in args.only:
            figures[case] = measure(case, folder, modules, args.calls)
            print_table(case, figures[case])
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


def install_onnxruntime_web(folder: Path) -> Path:
    """Install ONNX Runtime Web into a new folder and return the path of this folder."""
    folder.mkdir()
    subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), PACKAGE], check=True)
    return folder


def write_files(case: str, folder: Path) -> tuple[int, int, int]:
    """Write both networks in the file formats of both runtimes, and an input image in both layouts.

    Return the image's shape.
    """
    folder.mkdir()
    models = {kind: make_model() for kind, make_model in ENGINE_CASES[case].model_makers.items()}
    (folder / "binary.bnn").write_bytes(to_bytes(models["binary"]))
    for kind, model in models.items():
        (folder / f"{kind}.onnx").write_bytes(to_onnx(model))
    (folder / "int8.onnx").write_bytes(quantize_int8(models["real"]))
    image = np.random.default_rng(0).standard_normal(models["binary"].shape, np.float32)
    (folder / "last.bin").write_bytes(image.tobytes())
    (folder / "first.bin").write_bytes(np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes())
    return models["binary"].shape


def measure(case: str, folder: Path, modules: Path, num_calls: int) -> dict[str, Any]:
    """Time all entries on one network. The worker processes take turns."""
    case_folder = folder / case
    shape = write_files(case, case_folder)
    workers = {}
    try:
        for name, entry in ENTRIES.items():
            job = {
                "runtime": entry.runtime,
                "model": str(case_folder / entry.file),
                "threads": entry.threads,
                "shape": shape,
            }
            job |= {
                "engine": str(folder / "page"),
                "modules": str(modules),
                "answers": str(case_folder / f"{name}.bin"),
            }
            job["images"] = [str(case_folder / "last.bin"), str(case_folder / "first.bin")]
            script = str(ROOT / "bench" / "deploy" / "wasm_worker.mjs")
            workers[name] = Worker(script, job, case_folder / f"{name}.log", {}, program=("node",))
            workers[name].wait_until_ready(READY_TIMEOUT_S)
        times_ms, last_results = call_in_turns(workers, num_calls)
    finally:
        for worker in workers.values():
            worker.close()
    engine_median = statistics.median(times_ms["lcrbnn"])
    outputs = [
        np.fromfile(case_folder / f"{n}.bin", np.float32) for n, e in ENTRIES.items() if e.file.startswith("binary")
    ]
    return {
        "apart": max_relative_difference(outputs),
        **{name: summarize_runtime(ms, engine_median, last_results[name]) for name, ms in times_ms.items()},
    }


if __name__ == "__main__":
    main()
