"""How many images a second the training step alone takes, whatever its setting: eager, fast, with retention or not.

    python -m bench.fast_step [--network resnet20-double] [--precision bfloat16] [--weight 0] [--step fast] [--profile]

Three consecutive epochs of 50,000 images of noise, augmentation included, after one to warm up; the records against
the targets are bench.gpu_steps's, which times the whole trainer.
"""

from __future__ import annotations

import argparse
import fcntl
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.kernels import Kernels, kernel_lines
from bench.synthetic import known, noise
from lcrbnn.runs.record import write_record
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep

LOCK = Path(tempfile.gettempdir()) / "lcrbnn-bench.lock"  # others may compile meanwhile, not measure
EPOCHS = 3


def measure(spec: Spec, kind: str, images: int, seeds: int, profile: bool) -> dict[str, Any]:
    """Seconds of an epoch and what follows from them."""
    device = find_device("auto")
    with known(spec.data, noise(spec.data, images)) as row, numerics(spec):
        batches = Batches(row.load(Path()).train, row, device)
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
        with LOCK.open("w") as lock:
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
    step.begin(0, 0, step.spec.weight)
    kernels = Kernels(5)
    while not kernels.seen():
        step.take()
    return kernels.figures


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
        data="synthetic-32",
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
        settings = {**spec.stored(), "step": args.step, "side_by_side": args.seeds}
        write_record(args.record, "fast-step", settings, figures)
    kernels = figures.pop("kernels", None)
    shown = "  ".join(f"{k} {v:.3f}" for k, v in figures.items() if v is not None)
    how = f"{args.step} x {args.seeds}, {'deterministic' if spec.deterministic else 'any kernels'} {args.inductor}"
    print(f"{args.network} {args.precision} lambda {args.weight:g} {how}: {shown}", flush=True)
    if kernels is not None:
        print(kernel_lines(kernels))


if __name__ == "__main__":
    main()
