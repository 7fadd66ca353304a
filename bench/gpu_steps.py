"""How fast a GPU trains: images a second of whole epochs, what retention adds, against the targets.

    python -m bench.gpu_steps [--cases resnet20,resnet20-latent] [--record-folder results/bench] [--profile]

Each case is the trainer itself on images of noise: three consecutive epochs after two to warm up, with augmentation,
the log's lines and two looks at the ratios (in real training one epoch in ten has one). There is no evaluation, for
these runs learn from all training images, as the recipes do; no checkpoint either, whose seconds are told apart.

First all cases compile at once, a process each. Then fresh processes, which find everything compiled, take turns: while
one is on the GPU the others have not touched it. Ratios are between cases of one call; a case brings its base along.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.cases import CASES, Case
from bench.kernels import kernel_lines
from bench.one_case import Job
from bench.processes import Worker, cores, environment
from lcrbnn.errors import choose

START, FILL, MEASURE = 120, 400, 240  # seconds that a process may take to get ready, to compile, to be measured
REHEARSAL = 256  # images


def main() -> None:
    """Compile all, measure one by one, print the table."""
    args = _arguments()
    names = _with_bases(args.cases.split(",") if args.cases else list(CASES))
    with tempfile.TemporaryDirectory() as scratch:
        jobs = {name: _job(name, Path(scratch), args) for name in names}
        cold = _fill(jobs)
        figures = _measure(jobs, cold)
    print(_table(figures))


def _fill(jobs: dict[str, Job]) -> dict[str, Any]:
    """Seconds to the first step of each case, as long as nothing was compiled; cases alike but for seeds share it."""
    began = time.monotonic()
    first: dict[tuple[Any, ...], str] = {}
    for name, job in jobs.items():
        first.setdefault(job.case.compiled, name)
    cold: dict[str, Any] = {}
    with ExitStack() as held:
        workers = {name: _start(jobs[name], held, len(first), fill=True) for name in first.values()}
        for worker in workers.values():
            worker.ready(START)
            worker.go()
        for name, worker in workers.items():
            answer = worker.answer(FILL)
            cold[name] = answer.get("first_step_s")
            if "error" in answer:
                print(f"{name}: not compiled; {answer['error']}", flush=True)
    compiled = sum(seconds is not None for seconds in cold.values())
    print(f"{compiled} of {len(workers)} steps compiled in {time.monotonic() - began:.0f} s", flush=True)
    return cold


def _measure(jobs: dict[str, Job], cold: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as held:
        workers = {name: _start(job, held, len(jobs), fill=False) for name, job in jobs.items()}
        for worker in workers.values():
            worker.ready(START)
        for name, worker in workers.items():
            base = found.get(CASES[name].base or "", {})
            worker.go({"cold": cold.get(name), "base": None if "error" in base or not base else base})
            found[name] = worker.answer(MEASURE)
            print(_line(name, found[name]), flush=True)
            if "kernels" in found[name]:
                print(kernel_lines(found[name]["kernels"]), flush=True)
    return found


def _start(job: Job, held: ExitStack, beside: int, *, fill: bool) -> Worker:
    chosen = {**job.stored(), "epochs": 0, "record": None} if fill else job.stored()
    log = Path(job.scratch) / ("fill.log" if fill else "measure.log")
    threads = cores() // beside if fill else cores()
    worker = Worker("bench.one_case", chosen, log, environment(threads, job.rehearsal))
    held.callback(worker.end)
    return worker


def _job(name: str, scratch: Path, args: argparse.Namespace) -> Job:
    folder = args.record_folder
    return Job(
        name,
        str(scratch / name),
        args.epochs,
        args.images or (REHEARSAL if args.rehearsal else None),
        "cpu" if args.rehearsal else args.device,
        args.rehearsal,
        args.profile,
        None if folder is None else str((folder / f"gpu-steps-{name}.json").absolute()),
    )


def _with_bases(names: list[str]) -> list[str]:
    wanted: dict[str, None] = {}
    for name in names:
        base = choose(CASES, name, "case").base
        if base is not None:
            wanted[base] = None
        wanted[name] = None
    return list(wanted)


def _line(name: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{name}: failed; {found['error']}"
    memory = f"  {found['peak_memory_mb']:.0f} MB" if "peak_memory_mb" in found else ""
    ratio = f"  {found['time_ratio']:.3f} of {found['base']}" if "base" in found else ""
    return (
        f"{name}: {found['images_per_second']:,.0f} images/s  {found['ms_per_step']:.3f} ms a step{ratio}{memory}"
        f"  first step after {found['first_step_s']:.1f} s"
    )


def _table(figures: dict[str, dict[str, Any]]) -> str:
    head = f"{'case':<21}{'images/s':>10}{'ms':>9}{'time':>8}{'memory':>8}{'MB a run':>10}  targets"
    return "\n".join([head, *(_row(name, CASES[name], found) for name, found in figures.items())])


def _row(name: str, case: Case, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{name:<21} failed"
    cells = [
        f"{found['images_per_second']:>10,.0f}",
        f"{found['ms_per_step']:>9.3f}",
        *(f"{found[r]:>8.3f}" if r in found else f"{'':>8}" for r in ("time_ratio", "memory_ratio")),
        f"{found['memory_of_a_run_mb']:>10,.0f}" if "memory_of_a_run_mb" in found else f"{'':>10}",
    ]
    words = {True: "met", False: "missed", None: "not known"}
    targets = [f"{_bound(one)} {words[one['met']]}" for one in found["targets"].values()]
    return f"{name:<21}{''.join(cells)}  {', '.join(targets)}"


def _bound(target: dict[str, Any]) -> str:
    return f">= {target['at_least']:,g}" if "at_least" in target else f"<= {target['at_most']:g}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", help=f"some of {', '.join(CASES)}, with commas between")
    parser.add_argument("--record-folder", type=Path, help="write the record of each case into this folder")
    parser.add_argument("--epochs", type=int, default=3, help="that are timed")
    parser.add_argument("--images", type=int, help="training images, instead of 50,000 (6,400 of 224 pixels)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--profile", action="store_true", help="list the kernels of each case")
    parser.add_argument("--rehearsal", action="store_true", help="a tiny network in place of each, on the CPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
