"""Compare the speed of the engine with other runtimes, on a Bi-Real ResNet-18 at 224 pixels and on smaller networks.

    python -m bench.deploy.engine_vs_runtimes [--limit avx2] [--only resnet18 ...]
        [--record bench/records/engine-avx2.json]

Each runtime has its own process. The processes take turns, and each makes a few calls per turn. Results are medians for
one and two threads and for batch sizes of 1 and 8. The binary network runs in the engine, which is built with each
compiler. It also runs in OpenVINO, as BinaryConvolution with the same weights, and the outputs are compared. The
full-precision ResNet-18 runs in PyTorch, ONNX Runtime and OpenVINO. ONNX Runtime and OpenVINO also run it with 8-bit
integers. Further cases are the 16 binary convolutions (inside the network and alone) and a ResNet-20 for CIFAR.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.deploy.deployed_networks import ENGINE_CASES, EngineCase
from bench.worker_processes import ROOT, Worker
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.errors import InputError
from lcrbnn.runs.record import write_record

CALLS_PER_TURN = 5
READY_TIMEOUT_S, REQUEST_TIMEOUT_S = 600.0, 600.0

# These environment variables limit the CPU instructions that a runtime may use. The runtimes without an entry have no
# such setting.
INSTRUCTION_LIMITS: dict[str, dict[str, dict[str, str]]] = {
    "none": {},
    "avx2": {
        "lcrbnn": {"LCRBNN_KERNEL": "avx2"},
        "torch": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        **{name: {"ONEDNN_MAX_CPU_ISA": "AVX2"} for name in ("openvino", "openvino int8", "openvino binary")},
    },
}


class RuntimeEntry(NamedTuple):
    """One worker process, with its name in the record, key of RUNTIME_PREPARERS, model and environment variables."""

    name: str
    runtime: str
    model: str
    environment: dict[str, str]


def main() -> None:
    """Run the benchmark, print tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=200, help="minimum number of timed calls per runtime and setting")
    parser.add_argument(
        "--limit",
        default="none",
        choices=sorted(INSTRUCTION_LIMITS),
        help="limit the CPU instructions that all runtimes use",
    )
    parser.add_argument("--only", nargs="+", default=list(ENGINE_CASES), choices=list(ENGINE_CASES))
    parser.add_argument(
        "--batches", type=int, nargs="+", help="numbers of images per call (default: the numbers of each case)"
    )
    parser.add_argument(
        "--compilers",
        nargs="+",
        default=["g++", "clang++"],
        help="compilers that build the engine; ratios are relative to the first compiler",
    )
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    libraries = {compiler: build_engine(compiler) for compiler in args.compilers if shutil.which(compiler)}
    if not libraries:
        raise InputError(f"none of these compilers is installed: {', '.join(args.compilers)}")
    os.environ["LCRBNN_ENGINE"] = str(next(iter(libraries.values())))
    limits, figures = INSTRUCTION_LIMITS[args.limit], dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in args.only:
            engine_case = ENGINE_CASES[case]
            for kind, make_model in engine_case.model_makers.items():
                (folder / f"{case} {kind}.bnn").write_bytes(to_bytes(make_model()))
            figures[case] = case_figures = measure_footprint(folder / f"{case} binary.bnn", limits.get("lcrbnn", {}))
            print(f"{case}: loaded in {case_figures['load_ms']:.1f} ms, {case_figures['megabytes']:.1f} MB", flush=True)
            for threads, batch in itertools.product(engine_case.threads, args.batches or engine_case.batch_sizes):
                setting = f"{threads} threads, {batch} images"
                case_figures[setting] = measure(
                    case, engine_case, threads, batch, list_entries(engine_case, libraries, limits), folder, args.calls
                )
                print_table(f"{case}, {setting}", case_figures[setting])
            case_figures["speedup_of_two_threads"] = compute_two_thread_speedup(case_figures)
    settings = {
        "calls": args.calls,
        "limit": args.limit,
        "limits": limits,
        "compilers": {name: _read_version_line(name) for name in libraries},
        "versions": {name: version(name) for name in ("onnxruntime", "openvino", "torch")},
    }
    if args.record:
        write_record(args.record, "engine", settings, figures)


def build_engine(compiler: str) -> Path:
    """Build the engine with this compiler in a separate folder. Return the path of the library."""
    folder = ROOT / "build" / f"bench-{compiler.replace('+', 'p')}"
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), f"-DCMAKE_CXX_COMPILER={compiler}"]
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", "2"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "liblcrbnn_engine.so"


def list_entries(case: EngineCase, libraries: dict[str, Path], limits: dict[str, dict[str, str]]) -> list[RuntimeEntry]:
    """Return the engine built by each compiler, then the other runtimes.

    If a runtime runs both models, its name says which entry is the binary one.
    """
    engine_limits = limits.get("lcrbnn", {})
    entries = [
        RuntimeEntry(f"lcrbnn {c}", "lcrbnn", "binary", {**engine_limits, "LCRBNN_ENGINE": str(p)})
        for c, p in libraries.items()
    ]
    for runtime, model in case.runtimes:
        runs_both_models = sum(name == runtime for name, _ in case.runtimes) > 1 and model == "binary"
        name = f"{runtime}, binary network" if runs_both_models else runtime
        entries.append(RuntimeEntry(name, runtime, model, limits.get(runtime, {})))
    return entries


def measure(
    case_name: str,
    case: EngineCase,
    threads: int,
    batch: int,
    entries: list[RuntimeEntry],
    folder: Path,
    num_calls: int,
) -> dict[str, Any]:
    """Time all entries with this many threads and images per call. The worker processes take turns."""
    workers = {}
    try:
        for entry in entries:
            job: dict[str, Any] = {"runtime": entry.runtime, "model": str(folder / f"{case_name} {entry.model}.bnn")}
            job |= {
                "part": case.times_convolutions_only,
                "torch": case.torch_network,
                "threads": threads,
                "batch": batch,
            }
            job["answers"] = str(folder / f"{entry.name}.npy")
            workers[entry.name] = Worker(
                "bench.deploy.runtime_worker",
                job,
                folder / f"{entry.name}.log",
                {**_limit_thread_pools(threads), **entry.environment},
            )
            # Start the workers one at a time, so that they do not disturb each other.
            workers[entry.name].wait_until_ready(READY_TIMEOUT_S)
        cpu_before_s, wall_start_s, own_start_s = _read_total_cpu_s(), time.monotonic(), time.process_time()
        times_ms, last_results = call_in_turns(workers, num_calls)
        used_s = (
            sum(result["busy_s"] + result["idle_s"] for result in last_results.values())
            + time.process_time()
            - own_start_s
        )
        other_cpus = (_read_total_cpu_s() - cpu_before_s - used_s) / (time.monotonic() - wall_start_s)
    finally:
        for worker in workers.values():
            worker.close()
    engine_median = statistics.median(times_ms[entries[0].name])
    return {
        # Number of CPU cores that other programs used during the measurement
        "others_cpus": round(max(0.0, other_cpus), 3),
        "apart": max_relative_difference([np.load(folder / f"{e.name}.npy") for e in entries if e.model == "binary"]),
        **{name: summarize_runtime(ms, engine_median, last_results[name]) for name, ms in times_ms.items()},
    }


def call_in_turns(workers: dict[str, Worker], num_calls: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Let the workers make a few calls in turn.

    Return the milliseconds of all calls, and the last response of each worker.
    """
    times_ms: dict[str, list[float]] = {name: [] for name in workers}
    last_results: dict[str, Any] = {}
    for _ in range(-(-num_calls // CALLS_PER_TURN)):
        for name, worker in workers.items():
            last_results[name] = worker.request(CALLS_PER_TURN, REQUEST_TIMEOUT_S)
            times_ms[name] += last_results[name]["ms"]
    return times_ms, last_results


def summarize_runtime(times_ms: list[float], engine_median: float, last_result: dict[str, Any]) -> dict[str, Any]:
    """Return the median and shortest call of a runtime, its ratio to the engine, and the facts that it reported."""
    median = statistics.median(times_ms)
    facts = {key: value for key, value in last_result.items() if key not in ("ms", "busy_s", "idle_s")}
    return {
        "median": median,
        "best": min(times_ms),
        "calls": len(times_ms),
        "ratio": median / engine_median,
        "idle_s": last_result["idle_s"],
        **facts,
    }


def max_relative_difference(outputs: list[np.ndarray]) -> float:
    """Return the largest difference between an output and the first output, relative to the first's largest value."""
    return float(max(np.abs(a - outputs[0]).max() for a in outputs) / np.abs(outputs[0]).max())


def compute_two_thread_speedup(figures: dict[str, Any]) -> dict[str, float]:
    """Return the ratio of the engine's speed with two threads to that with one, per number of images per call."""
    speedups = {}
    for setting in [s for s in figures if s.startswith("1 threads")]:
        one_thread, two_threads = figures[setting], figures.get(setting.replace("1 threads", "2 threads"))
        engine = next(name for name in one_thread if name.startswith("lcrbnn"))
        if two_threads:
            speedups[setting.split(", ")[1]] = one_thread[engine]["median"] / two_threads[engine]["median"]
    return speedups


def print_table(title: str, figures: dict[str, Any]) -> None:
    """Print the results as a table."""
    other_load = f"; other programs used {figures['others_cpus']:.2f} CPUs" if "others_cpus" in figures else ""
    print(f"{title}; binary outputs differ by {figures['apart']:.2g}{other_load}")
    for name, row in figures.items():
        if isinstance(row, dict):
            print(f"  {name:31} {row['median']:9.3f} ms  best {row['best']:9.3f}  {row['ratio']:6.2f} x", flush=True)


# The peak memory and the time to load a model are measured in a new process. The memory of a process that has only
# imported NumPy is subtracted.
_MEASURE_LOADING = """
import re, sys, time
import numpy as np
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
from lcrbnn.deploy.engine.runtime import Engine, library
library()
began = time.perf_counter()
engine = Engine(sys.argv[1])
took = time.perf_counter() - began
engine.run(np.zeros((1, *engine.shape), np.float32))
print(1000 * took, peak() - before)
"""


def measure_footprint(path: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return the milliseconds to load a file and the megabytes after one call, both as medians of nine processes."""
    command, env = [sys.executable, "-c", _MEASURE_LOADING, str(path)], {**os.environ, **environment}
    outputs = [subprocess.check_output(command, text=True, env=env, cwd=ROOT).split() for _ in range(9)]
    loads, megabytes = (sorted(float(row[i]) for row in outputs) for i in (0, 1))
    return {"load_ms": loads[4], "megabytes": megabytes[4], "bytes": Engine(path).bytes}


def _limit_thread_pools(threads: int) -> dict[str, str]:
    """Return environment variables that limit thread pools to this many threads."""
    return {"OMP_NUM_THREADS": str(threads)}


def _read_total_cpu_s() -> float:
    """Return the total seconds for which the CPU cores were busy since the machine started."""
    fields = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _read_version_line(compiler: str) -> str:
    return subprocess.check_output([compiler, "--version"], text=True).splitlines()[0]


if __name__ == "__main__":
    main()
