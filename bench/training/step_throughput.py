"""Measure the images per second of the training step alone, eager or compiled, with or without LCR.

    python -m bench.training.step_throughput [--network resnet20-double] [--precision bfloat16] [--lcr-weight 0]
        [--step-mode compiled] [--profile]

Three consecutive epochs of 50,000 noise images with augmentation are timed, after one warm-up epoch. The records that
are compared with targets come from bench.training.gpu_throughput, which times the complete trainer.
"""

from __future__ import annotations

import argparse
import fcntl
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.training.step_kernel_times import KernelProfiler, format_kernel_table
from bench.training.synthetic_data import make_noise_split, register_dataset
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.runs.record import write_record
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.spec import TrainSpec

# other processes may compile at the same time, but must not measure
LOCK_FILE = Path(tempfile.gettempdir()) / "lcrbnn-bench.lock"
NUM_EPOCHS = 3


def measure(spec: TrainSpec, step_mode: str, num_images: int, num_seeds: int, should_profile: bool) -> dict[str, Any]:
    """Time the epochs with these settings. Return step time, throughput and memory."""
    device = find_device("auto")
    with (
        register_dataset(spec.dataset, make_noise_split(spec.dataset, num_images)) as dataset,
        deterministic_run(spec.deterministic, spec.precision),
    ):
        batches = InMemoryBatches(dataset.load(Path()).train, dataset, device)
        steps = []
        start_s = time.monotonic()
        for seed in range(num_seeds):
            parts = build_training_parts(
                spec.replace(seed=seed), device, fused=step_mode == "compiled" and device.type == "cuda"
            )
            step = (CompiledStep if step_mode == "compiled" else EagerStep)(spec, parts, batches)
            step.begin_epoch(0, 0, spec.lcr_weight)
            step.run_step()
            step.check_finite()
            steps.append(step)
        first_step_s = time.monotonic() - start_s
        with LOCK_FILE.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _run_epoch(steps, 1)
            start_s = time.monotonic()
            for epoch in range(NUM_EPOCHS):
                _run_epoch(steps, epoch)
            seconds = (time.monotonic() - start_s) / NUM_EPOCHS
            kernels = _profile_kernels(steps[0]) if should_profile else None
    figures = {
        "ms_per_step": 1000 * seconds / step.steps_per_epoch / num_seeds,
        "images_per_second": num_seeds * step.steps_per_epoch * spec.batch_size / seconds,
        "first_step_s": first_step_s,
        "peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else None,
    }
    return figures if kernels is None else {**figures, "kernels": kernels}


def _run_epoch(steps: list[Any], epoch: int) -> None:
    for step in steps:
        step.begin_epoch(epoch, 0, step.spec.lcr_weight)
    for _ in range(steps[0].steps_per_epoch):
        for step in steps:
            step.run_step()
    for step in steps:
        step.check_finite()


def _profile_kernels(step: Any) -> dict[str, Any]:
    step.begin_epoch(0, 0, step.spec.lcr_weight)
    kernels = KernelProfiler(5)
    while not kernels.record_step():
        step.run_step()
    return kernels.figures


def main() -> None:
    """Measure with one choice of settings and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="resnet20-double")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--lcr-weight", type=float, default=0.0)
    parser.add_argument("--step-mode", default="compiled", choices=["compiled", "eager"])
    parser.add_argument("--seeds", type=int, default=1, help="number of runs that train in parallel")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--no-deterministic", action="store_true")
    parser.add_argument(
        "--inductor",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="settings of torch._inductor.config, as NAME=VALUE",
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    args = parser.parse_args()
    for pair in args.inductor:
        name, value = pair.split("=")
        torch._inductor.config.patch({name: {"1": True, "0": False}.get(value, value)}).__enter__()
    spec = TrainSpec(
        dataset="synthetic-32",
        train_split="train+valid",
        model=args.network,
        method="irnet",
        batch_size=128,
        drop_last=True,
        lr=0.1,
        precision=args.precision,
        lcr_weight=args.lcr_weight,
        deterministic=not args.no_deterministic,
    )
    figures = measure(spec, args.step_mode, args.images, args.seeds, args.profile)
    if args.record:
        settings = {**spec.to_dict(), "step": args.step_mode, "side_by_side": args.seeds}
        write_record(args.record, "fast-step", settings, figures)
    kernels = figures.pop("kernels", None)
    figures_text = "  ".join(f"{k} {v:.3f}" for k, v in figures.items() if v is not None)
    mode_text = (
        f"{args.step_mode} x {args.seeds}, {'deterministic' if spec.deterministic else 'any kernels'} {args.inductor}"
    )
    print(f"{args.network} {args.precision} lambda {args.lcr_weight:g} {mode_text}: {figures_text}", flush=True)
    if kernels is not None:
        print(format_kernel_table(kernels))


if __name__ == "__main__":
    main()
