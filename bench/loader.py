"""How many images a core reads and makes ready in a second, at 224 pixels: the loader against a plain Pillow loop.

    python -m bench.loader [--images 160] [--rounds 5] [--record results/bench/loader-cpu.json]

Pictures are generated JPEGs of 500 x 375 pixels (and, apart, of 2000 x 1500) in a zip file; a random part of each is
resized to 224 pixels. The plain loop reads, decodes, crops and resizes by Pillow, then normalises and stacks by NumPy,
as a loop over a folder does; "pixels" leaves the last two out. The loader leaves normalising to the device. Times are
processor seconds of all processes that take part, so that others on the machine disturb little; rounds take turns.
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

from bench.photos import photo_zip
from lcrbnn.data import DATASETS
from lcrbnn.data.geometry import draws, random_crop
from lcrbnn.data.listing import Files, Listing
from lcrbnn.data.pixels import pillow_square
from lcrbnn.data.tree import find_tree
from lcrbnn.runs.record import write_record
from lcrbnn.train.pool import Pool, Request

SIDE, MARGIN, KEY, BATCH = 224, 256 / 224, 1, 32
SIZES = {"500x375": (500, 375), "2000x1500": (2000, 1500)}
GOAL = 1.5  # times the plain loop
TICKS = os.sysconf("SC_CLK_TCK")


def plain_part(content: bytes, place: int) -> np.ndarray:
    """A random part by Pillow, uint8 (side, side, 3)."""
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB")  # noqa: TID251  # the plain loop is the baseline)
    box, mirrored = random_crop(picture.width, picture.height, draws(KEY, place))
    part = picture.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    part = part.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if mirrored:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(part)


def normalized(squares: list[np.ndarray]) -> np.ndarray:
    """A float32 batch (n, 3, side, side), as a plain loop makes it."""
    row = DATASETS["imagenet"]
    mean, std = (np.array(values, np.float32) for values in (row.mean, row.std))
    return np.stack([((s.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1) for s in squares])


def plain_seconds(
    images: Listing, part: Callable[[bytes, int], np.ndarray], end: Callable[[list[np.ndarray]], Any]
) -> float:
    """Processor seconds of a loop over all images."""
    files = Files()
    began = time.process_time()
    for start in range(0, len(images), BATCH):
        places = range(start, min(start + BATCH, len(images)))
        end([part(files.read(images[place]), place) for place in places])
    return time.process_time() - began


def loader_seconds(pool: Pool, images: Listing, key: int | None) -> float:
    """Processor seconds of the loader, those of its processes included."""
    began = time.process_time() + _processes(pool)
    for job in pool.run(_requests(images, key)):
        assert not job.broken
        pool.release(job)
    return time.process_time() + _processes(pool) - began


def _requests(images: Listing, key: int | None) -> Iterator[Request]:
    for start in range(0, len(images), BATCH):
        places = range(start, min(start + BATCH, len(images)))
        yield Request(images.take(np.array(places)), key, places)


def _processes(pool: Pool) -> float:
    """Processor seconds of the processes of a pool so far."""
    total = 0
    for pid in pool.pids:
        user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        total += int(user) + int(system)
    return total / TICKS


def measure(images: Listing, rounds: int) -> dict[str, Any]:
    """Images a processor second of each way, and how many times the plain loop the loader is: medians of rounds."""

    def evaluated(content: bytes, place: int) -> np.ndarray:
        return pillow_square(content, SIDE, MARGIN)

    with Pool(SIDE, MARGIN, BATCH, 1) as pool:
        ways: dict[str, Callable[[], float]] = {
            "pillow": lambda: plain_seconds(images, plain_part, normalized),
            "pillow, pixels": lambda: plain_seconds(images, plain_part, np.stack),
            "loader": lambda: loader_seconds(pool, images, KEY),
            "pillow, evaluation": lambda: plain_seconds(images, evaluated, normalized),
            "loader, evaluation": lambda: loader_seconds(pool, images, None),
        }
        loader_seconds(pool, images, KEY)  # libraries are loaded, processes have begun
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                taken[name].append(way())
    rates = {name: len(images) / statistics.median(seconds) for name, seconds in taken.items()}
    pairs = {
        "ratio": ("pillow", "loader"),
        "ratio_pixels": ("pillow, pixels", "loader"),
        "ratio_evaluation": ("pillow, evaluation", "loader, evaluation"),
    }
    ratios = {
        name: statistics.median(a / b for a, b in zip(taken[slow], taken[fast], strict=True))
        for name, (slow, fast) in pairs.items()
    }
    return {"images_per_core_second": rates, **ratios}


def main() -> None:
    """Measure, print, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=160, help="of 500 x 375 pixels; a tenth as many of 2000 x 1500")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {"goal": GOAL}
    for name, size in SIZES.items():
        count = args.images if size[0] == 500 else max(2, args.images // 10)
        with tempfile.TemporaryDirectory() as scratch:
            images = find_tree(photo_zip(Path(scratch) / "photos.zip", [size] * count)).train
            found = figures[name] = {
                "images": count,
                "bytes": round(statistics.fmean(images[i].size for i in range(count))),
                **measure(images, args.rounds),
            }
        rates = "  ".join(f"{way} {rate:.0f}" for way, rate in found["images_per_core_second"].items())
        print(f"{name}: images a core and second: {rates}")
        print(
            f"{name}: the loader is {found['ratio']:.2f} times the plain loop (goal: {GOAL:g}), "
            f"{found['ratio_pixels']:.2f} times it without normalising, {found['ratio_evaluation']:.2f} in evaluation",
            flush=True,
        )
    if args.record:
        settings = {"side": SIDE, "images": args.images, "rounds": args.rounds, "batch": BATCH, "workers": 1}
        write_record(args.record, "loader", settings, figures)


if __name__ == "__main__":
    main()
