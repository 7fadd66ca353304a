"""Measure training throughput and the cost of LCR on a GPU over complete epochs, and compare both with targets.

    python -m bench.training.gpu_throughput [--cases resnet20,resnet20-latent] [--record-folder FOLDER] [--profile]

Each case runs the complete trainer on noise images: three consecutive epochs after two warm-up epochs, with
augmentation, log lines and two measurements of the LCR ratios (in real training, one epoch in ten has one). There is
no validation, because these runs train on all training images, as the recipes do. Checkpoint times are listed
separately.

All cases are compiled first, in parallel processes. Then new processes measure the cases one at a time. They find all
compiled code in the compiler cache. No other process uses the GPU during a measurement. Ratios only compare cases of
the same call, so the baseline of each case is measured too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.training.gpu_case_worker import Job
from bench.training.gpu_cases import CASES, Case
from bench.training.step_kernel_times import format_kernel_table
from bench.worker_processes import Worker, count_cores, make_compiler_environment
from lcrbnn.errors import lookup

# Timeouts in seconds of a worker process: until it is ready, for compiling, for measuring
READY_TIMEOUT_S, COMPILE_TIMEOUT_S, MEASURE_TIMEOUT_S = 120, 400, 240
NUM_REHEARSAL_IMAGES = 256


def main() -> None:
    """Compile all cases, measure one after the other and print the table."""
    args = _parse_arguments()
    names = _add_baselines(args.cases.split(",") if args.cases else list(CASES))
    with tempfile.TemporaryDirectory() as scratch:
        jobs = {name: _make_job(name, Path(scratch), args) for name in names}
        cold_start_s = _compile_cases(jobs)
        figures = _measure_cases(jobs, cold_start_s)
    print(_format_table(figures))


def _compile_cases(jobs: dict[str, Job]) -> dict[str, Any]:
    """Compile all cases. Return the seconds until the first step of each.

    Cases with the same compile key are compiled once.
    """
    start_s = time.monotonic()
    representatives: dict[tuple[Any, ...], str] = {}
    for name, job in jobs.items():
        representatives.setdefault(job.case.compile_key, name)
    cold_start_s: dict[str, Any] = {}
    with ExitStack() as stack:
        workers = {
            name: _start_worker(jobs[name], stack, len(representatives), compile_only=True)
            for name in representatives.values()
        }
        for worker in workers.values():
            worker.wait_until_ready(READY_TIMEOUT_S)
            worker.send_only_request()
        for name, worker in workers.items():
            result = worker.wait_for_result(COMPILE_TIMEOUT_S)
            cold_start_s[name] = result.get("first_step_s")
            if "error" in result:
                print(f"{name}: not compiled; {result['error']}", flush=True)
    num_compiled = sum(seconds is not None for seconds in cold_start_s.values())
    print(f"{num_compiled} of {len(workers)} steps compiled in {time.monotonic() - start_s:.0f} s", flush=True)
    return cold_start_s


def _measure_cases(jobs: dict[str, Job], cold_start_s: dict[str, Any]) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers = {name: _start_worker(job, stack, len(jobs), compile_only=False) for name, job in jobs.items()}
        for worker in workers.values():
            worker.wait_until_ready(READY_TIMEOUT_S)
        for name, worker in workers.items():
            base = results.get(CASES[name].baseline or "", {})
            worker.send_only_request(
                {"cold": cold_start_s.get(name), "base": None if "error" in base or not base else base}
            )
            results[name] = worker.wait_for_result(MEASURE_TIMEOUT_S)
            print(_format_result(name, results[name]), flush=True)
            if "kernels" in results[name]:
                print(format_kernel_table(results[name]["kernels"]), flush=True)
    return results


def _start_worker(job: Job, stack: ExitStack, num_workers: int, *, compile_only: bool) -> Worker:
    arguments = {**job.to_json(), "num_epochs": 0, "record_file": None} if compile_only else job.to_json()
    log = Path(job.scratch) / ("fill.log" if compile_only else "measure.log")
    threads = count_cores() // num_workers if compile_only else count_cores()
    worker = Worker(
        "bench.training.gpu_case_worker", arguments, log, make_compiler_environment(threads, job.is_rehearsal)
    )
    stack.callback(worker.close)
    return worker


def _make_job(name: str, scratch: Path, args: argparse.Namespace) -> Job:
    folder = args.record_folder
    return Job(
        name,
        str(scratch / name),
        args.epochs,
        args.images or (NUM_REHEARSAL_IMAGES if args.rehearsal else None),
        "cpu" if args.rehearsal else args.device,
        args.rehearsal,
        args.profile,
        None if folder is None else str((folder / f"gpu-steps-{name}.json").absolute()),
    )


def _add_baselines(names: list[str]) -> list[str]:
    ordered: dict[str, None] = {}
    for name in names:
        baseline = lookup(CASES, name, "case", "bench/training/gpu_throughput.py").baseline
        if baseline is not None:
            ordered[baseline] = None
        ordered[name] = None
    return list(ordered)


def _format_result(name: str, result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{name}: failed; {result['error']}"
    memory = f"  {result['peak_memory_mb']:.0f} MB" if "peak_memory_mb" in result else ""
    ratio = f"  {result['time_ratio']:.3f} of {result['base']}" if "base" in result else ""
    return (
        f"{name}: {result['images_per_second']:,.0f} images/s  {result['ms_per_step']:.3f} ms per step{ratio}{memory}"
        f"  first step after {result['first_step_s']:.1f} s"
    )


def _format_table(figures: dict[str, dict[str, Any]]) -> str:
    header = f"{'case':<21}{'images/s':>10}{'ms':>9}{'time':>8}{'memory':>8}{'MB/run':>10}  targets"
    return "\n".join([header, *(_format_row(name, CASES[name], result) for name, result in figures.items())])


def _format_row(name: str, case: Case, result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{name:<21} failed"
    cells = [
        f"{result['images_per_second']:>10,.0f}",
        f"{result['ms_per_step']:>9.3f}",
        *(f"{result[r]:>8.3f}" if r in result else f"{'':>8}" for r in ("time_ratio", "memory_ratio")),
        f"{result['memory_of_a_run_mb']:>10,.0f}" if "memory_of_a_run_mb" in result else f"{'':>10}",
    ]
    verdicts = {True: "met", False: "missed", None: "unknown"}
    targets = [f"{_format_bound(target)} {verdicts[target['met']]}" for target in result["targets"].values()]
    return f"{name:<21}{''.join(cells)}  {', '.join(targets)}"


def _format_bound(target: dict[str, Any]) -> str:
    return f">= {target['at_least']:,g}" if "at_least" in target else f"<= {target['at_most']:g}"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", help=f"comma-separated names of cases, out of {', '.join(CASES)}")
    parser.add_argument("--record-folder", type=Path, help="write the record of each case to this folder")
    parser.add_argument("--epochs", type=int, default=3, help="number of timed epochs")
    parser.add_argument(
        "--images", type=int, help="number of training images (default: 50,000, or 6,400 for images of 224 pixels)"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--profile", action="store_true", help="list the GPU kernels of each case")
    parser.add_argument(
        "--rehearsal", action="store_true", help="run tiny networks on the CPU, to check that the benchmark works"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
