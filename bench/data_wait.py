"""What reading images from files costs a training step: streamed and cached against images of noise on the device.

    python -m bench.data_wait --data-folder FOLDER [--data tiny-imagenet] [--network resnet18-double-imagenet]
        [--batch 256] [--precision bfloat16] [--rounds 3] [--workers -1] [--record results/bench/data-wait.json]
    python -m bench.data_wait --rehearsal        # a small network on generated images, on a CPU, to see that it runs

Each round is an epoch of each source in turn (all images, or --steps of them), after one to warm up, compiled and
captured on a GPU. The rate of noise is what the step could do; the share of it that files reach, and the share of the
time in which a step waited for images, are the figures. Cached images are decoded once, before the clock starts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.photos import photo_zip
from lcrbnn.data import DataSet, Split, data_folder
from lcrbnn.runs.record import write_record
from lcrbnn.train import Spec
from lcrbnn.train.augment import READ_SO
from lcrbnn.train.batches import Batches, Source
from lcrbnn.train.build import build
from lcrbnn.train.dataset import data_row, settled
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.sources import Access, open_splits
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep

GOAL = 0.9  # of the rate of noise
REHEARSAL = 64  # images


class Case:
    """One source of images with a step of its own."""

    def __init__(self, spec: Spec, source: Source, device: torch.device, fast: bool, steps: int) -> None:
        """Build the network; nothing is computed."""
        parts = build(spec, device, fused=fast and device.type == "cuda")
        self.source, self.step = source, (FastStep if fast else EagerStep)(spec, parts, source)
        self.spec = spec
        self.steps = min(steps, self.step.steps) if steps else self.step.steps

    def epoch(self, number: int) -> tuple[float, float]:
        """Seconds of an epoch, and the share of them in which a step waited for images."""
        waited, began = self.source.waited, time.monotonic()
        self.step.begin(number, 0, self.spec.weight)
        for _ in range(self.steps):
            self.step.take()
        self.step.check()
        seconds = time.monotonic() - began
        return seconds, (self.source.waited - waited) / seconds


def noise(row: DataSet, count: int, device: torch.device) -> Batches:
    """Images that nobody had to read."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, row.channels, row.image, row.image), dtype=np.uint8)
    return Batches(Split(images, draw.integers(0, row.classes, count)), row, device)


def cases(spec: Spec, access: Access, args: argparse.Namespace, held: ExitStack) -> dict[str, Case]:
    """Noise, cached if the augmentation allows it, streamed."""
    device = find_device(args.device)
    fast = args.step == "fast" or (args.step == "auto" and device.type == "cuda")
    row = data_row(spec)
    how = row.augment if spec.augment == "usual" else spec.augment
    found: dict[str, Source] = {}
    for cache in ("yes", "no") if how not in READ_SO else ("no",):
        there = Access(access.folder, access.workers, cache)
        found["cached" if cache == "yes" else "streamed"] = open_splits([spec], there, device, held)[0].train
    sources = {"noise": noise(row, min(len(found["streamed"]), args.noise), device), **found}
    return {name: Case(spec, source, device, fast, args.steps) for name, source in sources.items()}


def measure(made: dict[str, Case], rounds: int, batch: int) -> dict[str, Any]:
    """Images a second of each case, its share of the rate of noise, and the share of the time that it waited."""
    for case in made.values():
        case.epoch(0)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for number in range(1, rounds + 1):
        for name, case in made.items():
            taken[name].append(case.epoch(number))
    rates = {
        name: made[name].steps * batch / statistics.median(seconds for seconds, _ in found)
        for name, found in taken.items()
    }
    return {
        name: {
            "images_per_second": rates[name],
            "of_noise": rates[name] / rates["noise"],
            "waited": statistics.median(share for _, share in taken[name]),
            "seconds": [round(seconds, 3) for seconds, _ in taken[name]],
        }
        for name in made
    }


def main() -> None:
    """Measure, print a line a source, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="tiny-imagenet", help="tiny-imagenet, imagenet or folder")
    parser.add_argument("--data-folder", type=Path, default=data_folder())
    parser.add_argument("--side", type=int, default=0, help="of an image; 0: the data set's own")
    parser.add_argument("--augment", default="usual")
    parser.add_argument("--network", default="resnet18-double-imagenet")
    parser.add_argument("--method", default="irnet")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=0, help="of an epoch; 0: all")
    parser.add_argument("--noise", type=int, default=100_000, help="images of noise, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--step", default="auto", choices=["auto", "eager", "fast"])
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with ExitStack() as held:
        if args.rehearsal:
            scratch = Path(held.enter_context(tempfile.TemporaryDirectory()))
            args.data_folder = photo_zip(scratch / "photos.zip", [(16, 16)] * REHEARSAL, classes=4)
            args.data, args.side, args.augment, args.network = "folder", 16, "crop-flip", "resnet8-double"
            args.batch, args.precision, args.device = 16, "float32", "cpu"
        spec = Spec(
            data=args.data,
            side=args.side,
            augment=args.augment,
            images="all",
            model=args.network,
            method=args.method,
            batch=args.batch,
            drop_last=True,
            precision=args.precision,
            deterministic=args.deterministic,
        )
        spec = settled(spec, args.data_folder)
        held.enter_context(numerics(spec))
        access = Access(args.data_folder, args.workers)
        figures = measure(cases(spec, access, args, held), args.rounds, spec.batch)
    for name, found in figures.items():
        print(
            f"{name:<9} {found['images_per_second']:9.0f} images/s, {found['of_noise']:.3f} of noise "
            f"(goal: {GOAL:g}), waited {found['waited']:.1%}",
            flush=True,
        )
    if args.record:
        settings = {**spec.stored(), "workers": access.crew(), "step": args.step, "rounds": args.rounds}
        write_record(args.record, "data-wait", settings, {"goal": GOAL, **figures})


if __name__ == "__main__":
    main()
