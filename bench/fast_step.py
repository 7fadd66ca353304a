"""How many images a second the training step takes on a GPU: eager, fast, with and without retention.

    python -m bench.fast_step [--network resnet20-double] [--precision bfloat16] [--weight 0] [--step fast] [--profile]

Three consecutive epochs of 50,000 synthetic CIFAR-10 images, augmentation included, after one to warm up.
"""

from __future__ import annotations

import argparse
import fcntl
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lcrbnn.data import DATASETS, Split
from lcrbnn.runs.record import write_record
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep

EPOCHS = 3


def measure(spec: Spec, kind: str, images: int, seeds: int, profile: bool) -> dict[str, Any]:
    """Seconds of an epoch and what follows from them."""
    device = find_device("auto")
    draw = np.random.default_rng(0)
    split = Split(draw.integers(0, 256, (images, 3, 32, 32), np.uint8), draw.integers(0, 10, images))
    batches = Batches(split, DATASETS["cifar10"], device)
    with numerics(spec):
        steps = []
        began = time.monotonic()
        for seed in range(seeds):
            parts = build(spec.but(seed=seed), device, fused=kind == "fast" and device.type == "cuda")
            step = (FastStep if kind == "fast" else EagerStep)(spec, parts, batches)
            step.begin(0, 0, spec.weight)
            step.take()
            step.check()
            steps.append(step)
        first = time.monotonic() - began
        with Path("/tmp/lcrbnn-bench.lock").open("w") as lock:  # others may compile meanwhile, not measure
            fcntl.flock(lock, fcntl.LOCK_EX)
            _epoch(steps, 1)
            began = time.monotonic()
            for epoch in range(EPOCHS):
                _epoch(steps, epoch)
            seconds = (time.monotonic() - began) / EPOCHS
            kernels = _profile(steps[0]) if profile else None
    figures = {
        "ms_per_step": 1000 * seconds / step.steps / seeds,
        "images_per_second": seeds * step.steps * spec.batch / seconds,
        "first_step_s": first,
        "peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else None,
    }
    return figures if kernels is None else {**figures, "kernels": kernels}


def _epoch(steps: list[Any], epoch: int) -> None:
    for step in steps:
        step.begin(epoch, 0, step.spec.weight)
    for _ in range(steps[0].steps):
        for step in steps:
            step.take()
    for step in steps:
        step.check()


def _profile(step: Any) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    step.begin(0, 0, step.spec.weight)
    step.check()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            step.take()
        step.check()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    top = {row.key[:100]: [round(row.self_device_time_total / 5), row.count // 5] for row in rows[:70]}
    total = sum(row.self_device_time_total for row in rows) / 5
    return {"count": sum(row.count for row in rows) // 5, "us": total, "top": top}


def main() -> None:
    """Measure one setting and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="resnet20-double")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--weight", type=float, default=0.0)
    parser.add_argument("--step", default="fast", choices=["fast", "eager"])
    parser.add_argument("--seeds", type=int, default=1, help="runs side by side")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--no-deterministic", action="store_true")
    parser.add_argument("--inductor", nargs="*", default=[], metavar="NAME=VALUE", help="settings of torch's compiler")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    args = parser.parse_args()
    for pair in args.inductor:
        name, value = pair.split("=")
        torch._inductor.config.patch({name: {"1": True, "0": False}.get(value, value)}).__enter__()
    spec = Spec(
        data="cifar10",
        images="all",
        model=args.network,
        method="irnet",
        batch=128,
        drop_last=True,
        lr=0.1,
        precision=args.precision,
        weight=args.weight,
        deterministic=not args.no_deterministic,
    )
    figures = measure(spec, args.step, args.images, args.seeds, args.profile)
    if args.record:
        settings = {**spec.stored(), "step": args.step, "side_by_side": args.seeds, "images_seen": "synthetic"}
        write_record(args.record, "fast-step", settings, figures)
    kernels = figures.pop("kernels", None)
    shown = "  ".join(f"{k} {v:.3f}" for k, v in figures.items() if v is not None)
    how = f"{args.step} x {args.seeds}, {'deterministic' if spec.deterministic else 'any kernels'} {args.inductor}"
    print(f"{args.network} {args.precision} lambda {args.weight:g} {how}: {shown}", flush=True)
    if kernels is not None:
        print(f"{kernels['count']} kernels, {kernels['us']:.0f} us of device time a step")
        for name, (us, count) in kernels["top"].items():
            print(f"{us:6} us {count:4} x {name}")


if __name__ == "__main__":
    main()
