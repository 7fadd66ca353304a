"""How long every corruption takes, and how far a GPU's images are from a CPU's.

    python -m bench.corruptions [--images 1000] [--device cpu] [--side 32] [--record results/bench/corruptions-cpu.json]

One thread on a CPU. Images are smooth noise, or with --cifar10 the test images; photos of frost are needed (`lcrbnn
data frost`). On a GPU the first ones (--compare) are made by the CPU too, and compared: nothing depends on the batch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.photos import Photos
from lcrbnn.corrupt.table import CORRUPTIONS, SEVERITIES, corrupt
from lcrbnn.data import DATASETS, data_folder
from lcrbnn.data.frost import FOLDER
from lcrbnn.runs.record import write_record
from lcrbnn.train.numerics import find_device

WHOLE = 10_000  # images of a whole set, for which times are stated


def main() -> None:
    """Measure, print a line a corruption, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cifar10", action="store_true", help="the test images of CIFAR-10, from the data folder")
    parser.add_argument("--data-folder", type=Path, default=data_folder())
    parser.add_argument("--compare", type=int, default=1000, help="images that a CPU makes too, if the device is none")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = find_device(args.device)
    images = _images(args)
    photos = {where: Photos(args.data_folder / FOLDER, where) for where in {device.type, "cpu"}}
    figures: dict[str, Any] = {}
    for name in CORRUPTIONS:
        figures[name] = _one(name, images, device, photos, args.compare)
        shown = figures[name]
        apart = f"  differs by {shown['largest']} at most, on {shown['share']:.1e}" if "largest" in shown else ""
        print(f"{name:<18}" + "".join(f"{ms:8.3f}" for ms in shown["ms"]) + f" ms an image{apart}", flush=True)
    whole = sum(sum(row["ms"]) for row in figures.values()) / 1000 * WHOLE
    processor = sum(sum(row["cpu_ms"]) for row in figures.values()) / 1000 * WHOLE
    print(
        f"{WHOLE:,} images x {len(CORRUPTIONS) * len(SEVERITIES)}: {whole:.0f} s ({processor:.0f} s of processor time)"
    )
    if args.record:
        settings = {"images": len(images), "side": args.side, "device": device.type, "cifar10": args.cifar10}
        if device.type != "cpu":
            settings["compared"] = min(args.compare, len(images))
        write_record(
            args.record, "corruptions", settings, {"whole_s": whole, "whole_cpu_s": processor, "each": figures}
        )


def _images(args: argparse.Namespace) -> Tensor:
    """uint8 (n, 3, side, side)."""
    if args.cifar10:
        return torch.from_numpy(DATASETS["cifar10"].load(args.data_folder).test.images[: args.images])
    coarse = np.random.default_rng(0).integers(0, 256, (args.images, 3, 8, 8)).astype(np.float32)
    smooth = torch.nn.functional.interpolate(torch.from_numpy(coarse), size=args.side, mode="bilinear")
    return smooth.to(torch.uint8)


def _one(name: str, images: Tensor, device: torch.device, photos: dict[str, Photos], compare: int) -> dict[str, Any]:
    rows, there, few = torch.arange(len(images)), images.to(device), images[:compare]
    corrupt(there[:64], name, SEVERITIES[-1], rows[:64], photos[device.type])  # tables, first launches
    found: dict[str, Any] = {"ms": [], "cpu_ms": []}
    largest, differ = 0, 0
    for severity in SEVERITIES:
        _wait(device)
        wall, processor = time.perf_counter(), time.process_time()
        made = corrupt(there, name, severity, rows, photos[device.type])
        _wait(device)
        found["ms"].append(1000 * (time.perf_counter() - wall) / len(images))
        found["cpu_ms"].append(1000 * (time.process_time() - processor) / len(images))
        if device.type != "cpu":
            slow = corrupt(few, name, severity, rows[:compare], photos["cpu"])
            apart = (made[:compare].cpu().int() - slow.int()).abs()
            largest, differ = max(largest, int(apart.max())), differ + int((apart > 0).sum())
    if device.type != "cpu":
        found |= {"largest": largest, "share": differ / (len(SEVERITIES) * few.numel())}
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
