"""The engine against the runtimes that a user could pick instead: a Bi-Real ResNet-18 at 224 pixels, and more.

    python -m bench.engine [--limit avx2] [--only resnet18 ...] [--record results/bench/engine-avx2.json]

Each runtime in a process of its own, a few calls in turn, medians; one thread and two, batches of 1 and 8. The binary
network runs in our engine, built by each compiler, and as OpenVINO's BinaryConvolution, with the same weights and the
answers compared. Its full-precision twin, an ordinary ResNet-18, runs in PyTorch, ONNX Runtime and OpenVINO, the latter
two also in 8 bits. Then the 16 binary convolutions, within it and alone, and a ResNet-20 for CIFAR.
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

from bench.deployed import DEPLOYED, Deployed
from bench.processes import ROOT, Worker
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.errors import InputError
from lcrbnn.runs.record import write_record

TURN = 5  # calls of a turn
READY, ANSWER = 600.0, 600.0  # seconds that a process may take

# What keeps each runtime to some instructions; the others know no such setting, and use what the CPU has.
LIMITS: dict[str, dict[str, dict[str, str]]] = {
    "none": {},
    "avx2": {
        "lcrbnn": {"LCRBNN_KERNEL": "avx2"},
        "torch": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        **{name: {"ONEDNN_MAX_CPU_ISA": "AVX2"} for name in ("openvino", "openvino int8", "openvino binary")},
    },
}


class Entry(NamedTuple):
    """One process: its name in the record, a row of bench.one_runtime, the model it runs, what its environment adds."""

    name: str
    runtime: str
    model: str
    environment: dict[str, str]


def main() -> None:
    """Measure, print tables, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=200, help="of each runtime in each setting, at least")
    parser.add_argument("--limit", default="none", choices=sorted(LIMITS), help="instructions that all keep to")
    parser.add_argument("--only", nargs="+", default=list(DEPLOYED), choices=list(DEPLOYED))
    parser.add_argument("--batches", type=int, nargs="+", help="images a call; each network's own choice if not said")
    parser.add_argument("--compilers", nargs="+", default=["g++", "clang++"], help="the first is what ratios are to")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    libraries = {compiler: build(compiler) for compiler in args.compilers if shutil.which(compiler)}
    if not libraries:
        raise InputError(f"none of these compilers is installed: {', '.join(args.compilers)}")
    os.environ["LCRBNN_ENGINE"] = str(next(iter(libraries.values())))
    limits, figures = LIMITS[args.limit], dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in args.only:
            row = DEPLOYED[case]
            for kind, made in row.models.items():
                (folder / f"{case} {kind}.bnn").write_bytes(to_bytes(made()))
            figures[case] = found = footprint(folder / f"{case} binary.bnn", limits.get("lcrbnn", {}))
            print(f"{case}: loaded in {found['load_ms']:.1f} ms, {found['megabytes']:.1f} MB", flush=True)
            for threads, batch in itertools.product(row.threads, args.batches or row.batches):
                setting = f"{threads} threads, {batch} images"
                found[setting] = measure(case, row, threads, batch, entries(row, libraries, limits), folder, args.calls)
                show(f"{case}, {setting}", found[setting])
            found["speedup_of_two_threads"] = speedup(found)
    settings = {
        "calls": args.calls,
        "limit": args.limit,
        "limits": limits,
        "compilers": {name: _first_line(name) for name in libraries},
        "versions": {name: version(name) for name in ("onnxruntime", "openvino", "torch")},
    }
    if args.record:
        write_record(args.record, "engine", settings, figures)


def build(compiler: str) -> Path:
    """The engine's library, built by this compiler in a folder of its own."""
    folder = ROOT / "build" / f"bench-{compiler.replace('+', 'p')}"
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), f"-DCMAKE_CXX_COMPILER={compiler}"]
    for words in (configure, ["cmake", "--build", str(folder), "--parallel", "2"]):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return folder / "liblcrbnn_engine.so"


def entries(row: Deployed, libraries: dict[str, Path], limits: dict[str, dict[str, str]]) -> list[Entry]:
    """Ours by each compiler, then the others; the name of one that runs another model than most says so."""
    ours = limits.get("lcrbnn", {})
    made = [Entry(f"lcrbnn {c}", "lcrbnn", "binary", {**ours, "LCRBNN_ENGINE": str(p)}) for c, p in libraries.items()]
    for runtime, model in row.runtimes:
        twice = sum(name == runtime for name, _ in row.runtimes) > 1 and model == "binary"
        name = f"{runtime}, binary network" if twice else runtime
        made.append(Entry(name, runtime, model, limits.get(runtime, {})))
    return made


def measure(
    case: str, row: Deployed, threads: int, batch: int, made: list[Entry], folder: Path, calls: int
) -> dict[str, Any]:
    """All of them with so many threads and images a call, in turns."""
    workers = {}
    try:
        for entry in made:
            job: dict[str, Any] = {"runtime": entry.runtime, "model": str(folder / f"{case} {entry.model}.bnn")}
            job |= {"part": row.part, "torch": row.torch, "threads": threads, "batch": batch}
            job["answers"] = str(folder / f"{entry.name}.npy")
            workers[entry.name] = Worker(
                "bench.one_runtime", job, folder / f"{entry.name}.log", {**_quiet(threads), **entry.environment}
            )
            workers[entry.name].ready(READY)  # one at a time: they are not to disturb each other here either
        before, began, busy = _cpu_seconds(), time.monotonic(), time.process_time()
        taken, last = in_turns(workers, calls)
        used = sum(found["busy_s"] + found["idle_s"] for found in last.values()) + time.process_time() - busy
        others = (_cpu_seconds() - before - used) / (time.monotonic() - began)
    finally:
        for worker in workers.values():
            worker.end()
    ours = statistics.median(taken[made[0].name])
    return {
        "others_cpus": round(max(0.0, others), 3),  # processors that were busy with other programs
        "apart": apart([np.load(folder / f"{e.name}.npy") for e in made if e.model == "binary"]),
        **{name: figures_of(ms, ours, last[name]) for name, ms in taken.items()},
    }


def in_turns(workers: dict[str, Worker], calls: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Milliseconds of each call, and the last answer of each: a few calls of one, then of the next."""
    taken: dict[str, list[float]] = {name: [] for name in workers}
    last: dict[str, Any] = {}
    for _ in range(-(-calls // TURN)):
        for name, worker in workers.items():
            last[name] = worker.ask(TURN, ANSWER)
            taken[name] += last[name]["ms"]
    return taken, last


def figures_of(ms: list[float], ours: float, last: dict[str, Any]) -> dict[str, Any]:
    """Of one runtime: the median and the best call, how many, the ratio to ours, and what it says of itself."""
    median = statistics.median(ms)
    facts = {key: value for key, value in last.items() if key not in ("ms", "busy_s", "idle_s")}
    return {
        "median": median,
        "best": min(ms),
        "calls": len(ms),
        "ratio": median / ours,
        "idle_s": last["idle_s"],
        **facts,
    }


def apart(answers: list[np.ndarray]) -> float:
    """The largest difference of any answer from the first, in parts of its largest number."""
    return float(max(np.abs(a - answers[0]).max() for a in answers) / np.abs(answers[0]).max())


def speedup(found: dict[str, Any]) -> dict[str, float]:
    """How much faster two threads are than one, for ours, by images a call."""
    both = {}
    for setting in [s for s in found if s.startswith("1 threads")]:
        one, two = found[setting], found.get(setting.replace("1 threads", "2 threads"))
        ours = next(name for name in one if name.startswith("lcrbnn"))
        if two:
            both[setting.split(", ")[1]] = one[ours]["median"] / two[ours]["median"]
    return both


def show(title: str, found: dict[str, Any]) -> None:
    """A table for a reader."""
    others = f"; others had {found['others_cpus']:.2f} processors" if "others_cpus" in found else ""
    print(f"{title}; binary answers within {found['apart']:.2g}{others}")
    for name, row in found.items():
        if isinstance(row, dict):
            print(f"  {name:31} {row['median']:9.3f} ms  best {row['best']:9.3f}  {row['ratio']:6.2f} x", flush=True)


# In a process of its own: memory above one that has imported NumPy, and the time from the file to a model ready to run.
_LOAD = """
import re, sys, time
import numpy as np
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
from lcrbnn.engine.lib import Engine, library
library()
began = time.perf_counter()
engine = Engine(sys.argv[1])
took = time.perf_counter() - began
engine.run(np.zeros((1, *engine.shape), np.float32))
print(1000 * took, peak() - before)
"""


def footprint(path: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Milliseconds to load a file, and megabytes that it takes, loaded and run once; the median of nine processes."""
    words, env = [sys.executable, "-c", _LOAD, str(path)], {**os.environ, **environment}
    made = [subprocess.check_output(words, text=True, env=env, cwd=ROOT).split() for _ in range(9)]
    loads, megabytes = (sorted(float(row[i]) for row in made) for i in (0, 1))
    return {"load_ms": loads[4], "megabytes": megabytes[4], "bytes": Engine(path).bytes}


def _quiet(threads: int) -> dict[str, str]:
    """Thread pools that are no larger than asked for."""
    return {"OMP_NUM_THREADS": str(threads)}


def _cpu_seconds() -> float:
    """Seconds of all processors that were not idle, since the machine started."""
    fields = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _first_line(compiler: str) -> str:
    return subprocess.check_output([compiler, "--version"], text=True).splitlines()[0]


if __name__ == "__main__":
    main()
