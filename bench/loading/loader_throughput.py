"""Measure the images per CPU second of the data loader at 224 pixels, compared with a plain Pillow loop.

    python -m bench.loading.loader_throughput [--images 160] [--rounds 5] [--record bench/records/loader-cpu.json]

The input is a zip file of generated JPEG images with 500 x 375 pixels (and a second file with 2000 x 1500 pixels). A
random crop of each image is resized to 224 pixels. The plain loop does this with Pillow, then normalizes and stacks the
images with NumPy. Training code that loops over a folder of images often does the same.

The loader leaves the normalization to the device, so the variant "pixels" omits normalizing and stacking. Times are CPU
seconds of all processes involved. Other programs on the machine affect CPU seconds less than wall time. The variants
alternate in every round.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.loading.photo_like_images import write_photo_zip
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.image_files.crop_boxes import draw_crop_numbers, random_crop_box
from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.data.image_files.image_index import ImageIndex, ImageReader
from lcrbnn.data.image_files.read_arrays import decode_and_center_crop
from lcrbnn.data.loading.worker_pool import BatchRequest, WorkerPool
from lcrbnn.runs.record import write_record

IMAGE_SIZE, RESIZE_RATIO, CROP_SEED, BATCH_SIZE = 224, 256 / 224, 1, 32
PHOTO_SIZES = {"500x375": (500, 375), "2000x1500": (2000, 1500)}
TARGET_RATIO = 1.5  # minimum ratio of the loader's images per CPU second to those of the plain Pillow loop
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def crop_with_pillow(content: bytes, index: int) -> np.ndarray:
    """Return a random crop of an image, made with Pillow, as uint8 (224, 224, 3)."""
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB")  # noqa: TID251  # the baseline uses plain Pillow
    box, is_flipped = random_crop_box(image.width, image.height, draw_crop_numbers(CROP_SEED, index))
    crop = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    crop = crop.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR)
    if is_flipped:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(crop)


def normalize_batch(crops: list[np.ndarray]) -> np.ndarray:
    """Return the images as a normalized float32 batch (n, 3, 224, 224)."""
    dataset = DATASETS["imagenet"]
    mean, std = (np.array(values, np.float32) for values in (dataset.mean, dataset.std))
    return np.stack([((s.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1) for s in crops])


def time_pillow_loop(
    images: ImageIndex,
    decode_and_crop: Callable[[bytes, int], np.ndarray],
    finish_batch: Callable[[list[np.ndarray]], Any],
) -> float:
    """Return the CPU seconds of the plain Pillow loop over all images."""
    reader = ImageReader()
    start_s = time.process_time()
    for start in range(0, len(images), BATCH_SIZE):
        indices = range(start, min(start + BATCH_SIZE, len(images)))
        finish_batch([decode_and_crop(reader.read(images[i]), i) for i in indices])
    return time.process_time() - start_s


def time_loader(pool: WorkerPool, images: ImageIndex, crop_seed: int | None) -> float:
    """Return the CPU seconds that the data loader needs for all images, including its worker processes."""
    start_s = time.process_time() + _sum_worker_cpu_s(pool)
    for batch in pool.read_batches(_make_batch_requests(images, crop_seed)):
        assert not batch.broken_images
        pool.release(batch)
    return time.process_time() + _sum_worker_cpu_s(pool) - start_s


def _make_batch_requests(images: ImageIndex, crop_seed: int | None) -> Iterator[BatchRequest]:
    for start in range(0, len(images), BATCH_SIZE):
        indices = range(start, min(start + BATCH_SIZE, len(images)))
        yield BatchRequest(images.take(np.array(indices)), crop_seed, indices)


def _sum_worker_cpu_s(pool: WorkerPool) -> float:
    """Return the CPU seconds that the worker processes have used so far."""
    total = 0
    for pid in pool.pids:
        user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        total += int(user) + int(system)
    return total / CLOCK_TICKS_PER_S


def measure(images: ImageIndex, rounds: int) -> dict[str, Any]:
    """Return the images per CPU second of each variant, and the median ratios of the loader to the plain loop."""

    def crop_for_evaluation(content: bytes, index: int) -> np.ndarray:
        return decode_and_center_crop(content, IMAGE_SIZE, RESIZE_RATIO)

    with WorkerPool(IMAGE_SIZE, RESIZE_RATIO, BATCH_SIZE, 1) as pool:
        variants: dict[str, Callable[[], float]] = {
            "pillow": lambda: time_pillow_loop(images, crop_with_pillow, normalize_batch),
            "pillow, pixels": lambda: time_pillow_loop(images, crop_with_pillow, np.stack),
            "loader": lambda: time_loader(pool, images, CROP_SEED),
            "pillow, evaluation": lambda: time_pillow_loop(images, crop_for_evaluation, normalize_batch),
            "loader, evaluation": lambda: time_loader(pool, images, None),
        }
        time_loader(pool, images, CROP_SEED)  # warm-up before the timing: import libraries and start the workers
        seconds_by_variant: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, time_variant in variants.items():
                seconds_by_variant[name].append(time_variant())
    rates = {name: len(images) / statistics.median(seconds) for name, seconds in seconds_by_variant.items()}
    compared_variants = {
        "ratio": ("pillow", "loader"),
        "ratio_pixels": ("pillow, pixels", "loader"),
        "ratio_evaluation": ("pillow, evaluation", "loader, evaluation"),
    }
    ratios = {
        name: statistics.median(a / b for a, b in zip(seconds_by_variant[slow], seconds_by_variant[fast], strict=True))
        for name, (slow, fast) in compared_variants.items()
    }
    return {"images_per_core_second": rates, **ratios}


def main() -> None:
    """Run the benchmark, print the results and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--images",
        type=int,
        default=160,
        help="number of images of 500 x 375 pixels; one tenth of this number is used for 2000 x 1500 pixels",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {"goal": TARGET_RATIO}
    for name, size in PHOTO_SIZES.items():
        count = args.images if size[0] == 500 else max(2, args.images // 10)
        with tempfile.TemporaryDirectory() as scratch:
            images = find_image_folder(write_photo_zip(Path(scratch) / "photos.zip", [size] * count)).train
            result = figures[name] = {
                "images": count,
                "bytes": round(statistics.fmean(images[i].size for i in range(count))),
                **measure(images, args.rounds),
            }
        rates = "  ".join(f"{variant} {rate:.0f}" for variant, rate in result["images_per_core_second"].items())
        print(f"{name}: images per CPU second: {rates}")
        print(
            f"{name}: loader relative to the plain loop: {result['ratio']:.2f} (target {TARGET_RATIO:g}), "
            f"{result['ratio_pixels']:.2f} without normalizing, {result['ratio_evaluation']:.2f} for evaluation",
            flush=True,
        )
    if args.record:
        settings = {"side": IMAGE_SIZE, "images": args.images, "rounds": args.rounds, "batch": BATCH_SIZE, "workers": 1}
        write_record(args.record, "loader", settings, figures)


if __name__ == "__main__":
    main()
