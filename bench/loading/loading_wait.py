"""Measure how much slower a training step is if images are read from files and not from the memory of the device.

    python -m bench.loading.loading_wait --data-folder FOLDER [--dataset tiny-imagenet] [--batch-size 256] [--rounds 3]
        [--network resnet18-double-imagenet] [--precision bfloat16] [--workers -1]
        [--record bench/records/data-wait.json]
    python -m bench.loading.loading_wait --rehearsal

--rehearsal runs a small network on generated images on a CPU, to check that the benchmark works. Each round trains
one epoch (or --steps steps) on each source in turn, after one warm-up epoch, with the compiled step on a GPU. The rate
with noise images is the maximum for the step. The results are the rate of each source relative to noise, and the
fraction of time spent waiting for images. Cached images are decoded once, before the timing starts.

With --rehearsal, a small network trains on generated images on a CPU. This only checks that the benchmark works. Each
round trains one epoch (or --steps steps) on each source in turn, after one warm-up epoch. On a GPU the step is
compiled. Noise images in the memory of the device give the maximum rate of the step. The results are the rate of each
source relative to that maximum, and the fraction of time spent waiting for images. Cached images are decoded once,
before the timing starts.
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

from bench.loading.photo_like_images import write_photo_zip
from lcrbnn.data.datasets import DataSet, default_data_folder
from lcrbnn.data.loading.augment import CROPPED_ON_READ
from lcrbnn.data.loading.batches import BatchSource, InMemoryBatches
from lcrbnn.data.split import Split
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.runs.record import write_record
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.dataset import DataAccess, fill_in_num_classes, find_dataset, open_splits
from lcrbnn.train.setup.spec import TrainSpec

TARGET_RATIO = 0.9  # minimum ratio of images per second to those with noise images
NUM_REHEARSAL_IMAGES = 64


class TimedSource:
    """A source of images and a training step on it."""

    def __init__(
        self, spec: TrainSpec, source: BatchSource, device: torch.device, is_compiled: bool, num_steps: int
    ) -> None:
        """Build the network and the step."""
        parts = build_training_parts(spec, device, fused=is_compiled and device.type == "cuda")
        self.source, self.step = source, (CompiledStep if is_compiled else EagerStep)(spec, parts, source)
        self.spec = spec
        self.num_steps = min(num_steps, self.step.steps_per_epoch) if num_steps else self.step.steps_per_epoch

    def time_epoch(self, number: int) -> tuple[float, float]:
        """Train one epoch. Return its duration in seconds and the fraction of time spent waiting for images."""
        loading_before_s, start_s = self.source.loading_time_s, time.monotonic()
        self.step.begin_epoch(number, 0, self.spec.lcr_weight)
        for _ in range(self.num_steps):
            self.step.run_step()
        self.step.check_finite()
        seconds = time.monotonic() - start_s
        return seconds, (self.source.loading_time_s - loading_before_s) / seconds


def make_noise_batches(dataset: DataSet, num_images: int, device: torch.device) -> InMemoryBatches:
    """Return random images in memory, so that nothing has to be read."""
    rng = np.random.default_rng(0)
    images = rng.integers(
        0, 256, (num_images, dataset.channels, dataset.image_size, dataset.image_size), dtype=np.uint8
    )
    return InMemoryBatches(Split(images, rng.integers(0, dataset.num_classes, num_images)), dataset, device)


def open_sources(
    spec: TrainSpec, access: DataAccess, args: argparse.Namespace, stack: ExitStack
) -> dict[str, TimedSource]:
    """Open the sources, which are noise, cached files (if the augmentation allows caching) and streamed files."""
    device = find_device(args.device)
    is_compiled = args.step_mode == "compiled" or (args.step_mode == "auto" and device.type == "cuda")
    dataset = find_dataset(spec)
    augmentation = dataset.default_augmentation if spec.augmentation == "standard" else spec.augmentation
    file_sources: dict[str, BatchSource] = {}
    for cache_images in ("yes", "no") if augmentation not in CROPPED_ON_READ else ("no",):
        cached_access = DataAccess(access.data_folder, access.workers, cache_images)
        file_sources["cached" if cache_images == "yes" else "streamed"] = open_splits(
            [spec], cached_access, device, stack
        )[0].train
    sources = {
        "noise": make_noise_batches(dataset, min(len(file_sources["streamed"]), args.noise), device),
        **file_sources,
    }
    return {name: TimedSource(spec, source, device, is_compiled, args.steps) for name, source in sources.items()}


def measure(timed_sources: dict[str, TimedSource], rounds: int, batch: int) -> dict[str, Any]:
    """Return the images per second of each source relative to noise images, and the fractions of time spent waiting."""
    for timed_source in timed_sources.values():
        timed_source.time_epoch(0)
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in timed_sources}
    for number in range(1, rounds + 1):
        for name, timed_source in timed_sources.items():
            timings[name].append(timed_source.time_epoch(number))
    rates = {
        name: timed_sources[name].num_steps * batch / statistics.median(seconds for seconds, _ in source_timings)
        for name, source_timings in timings.items()
    }
    return {
        name: {
            "images_per_second": rates[name],
            "of_noise": rates[name] / rates["noise"],
            "waited": statistics.median(wait_fraction for _, wait_fraction in timings[name]),
            "seconds": [round(seconds, 3) for seconds, _ in timings[name]],
        }
        for name in timed_sources
    }


def main() -> None:
    """Run the benchmark, print one line per source and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--dataset", default="tiny-imagenet", help="name of the data set: tiny-imagenet, imagenet or folder"
    )
    parser.add_argument("--data-folder", type=Path, default=default_data_folder())
    parser.add_argument(
        "--image-size", type=int, default=0, help="side length of the images in pixels (0 = image size of the data set)"
    )
    parser.add_argument("--augmentation", default="standard")
    parser.add_argument("--network", default="resnet18-double-imagenet")
    parser.add_argument("--method", default="irnet")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=0, help="number of training steps per epoch (0 = all steps)")
    parser.add_argument("--noise", type=int, default=100_000, help="maximum number of noise images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--step-mode", default="auto", choices=["auto", "eager", "compiled"])
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with ExitStack() as stack:
        if args.rehearsal:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            args.data_folder = write_photo_zip(scratch / "photos.zip", [(16, 16)] * NUM_REHEARSAL_IMAGES, classes=4)
            args.dataset, args.image_size, args.augmentation, args.network = "folder", 16, "crop-flip", "resnet8-double"
            args.batch_size, args.precision, args.device = 16, "float32", "cpu"
        spec = TrainSpec(
            dataset=args.dataset,
            image_size=args.image_size,
            augmentation=args.augmentation,
            train_split="train+valid",
            model=args.network,
            method=args.method,
            batch_size=args.batch_size,
            drop_last=True,
            precision=args.precision,
            deterministic=args.deterministic,
        )
        spec = fill_in_num_classes(spec, args.data_folder)
        stack.enter_context(deterministic_run(spec.deterministic, spec.precision))
        access = DataAccess(args.data_folder, args.workers)
        figures = measure(open_sources(spec, access, args, stack), args.rounds, spec.batch_size)
    for name, result in figures.items():
        print(
            f"{name:<9} {result['images_per_second']:9.0f} images/s, {result['of_noise']:.3f} of noise "
            f"(goal: {TARGET_RATIO:g}), waited {result['waited']:.1%}",
            flush=True,
        )
    if args.record:
        settings = {**spec.to_dict(), "workers": access.count_workers(), "step": args.step_mode, "rounds": args.rounds}
        write_record(args.record, "data-wait", settings, {"goal": TARGET_RATIO, **figures})


if __name__ == "__main__":
    main()
