"""Measure the time of every corruption. On a GPU, also measure how the images differ from those computed on the CPU.

    python -m bench.deploy.corruption_times [--images 1000] [--device cpu] [--side 32]
        [--record bench/records/corruptions-cpu.json]

On a CPU one thread is used. The images are smooth noise, or the test images with --cifar10. The frost photos are
required (`lcrbnn data frost`). On a GPU the first --compare images are also computed on the CPU and compared. The
result for an image does not depend on its batch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.datasets import DATASETS, default_data_folder
from lcrbnn.device import find_device
from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS, SEVERITIES, apply_corruption
from lcrbnn.evaluation.corruptions.frost_photos import FROST_FOLDER, FrostPhotos
from lcrbnn.runs.record import write_record

FULL_SET_SIZE = 10_000  # number of images per corruption and severity for which the total time is printed


def main() -> None:
    """Run the benchmark, print one line per corruption and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cifar10", action="store_true", help="use the test images of CIFAR-10 from the data folder")
    parser.add_argument("--data-folder", type=Path, default=default_data_folder())
    parser.add_argument(
        "--compare",
        type=int,
        default=1000,
        help="number of images that are also corrupted on the CPU, if the device is a GPU",
    )
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = find_device(args.device)
    images = _make_images(args)
    photos = {
        device_type: FrostPhotos(args.data_folder / FROST_FOLDER, device_type) for device_type in {device.type, "cpu"}
    }
    figures: dict[str, Any] = {}
    for name in CORRUPTIONS:
        figures[name] = _time_corruption(name, images, device, photos, args.compare)
        result = figures[name]
        difference = (
            f"  max difference {result['largest']} in {result['share']:.1e} of the values"
            if "largest" in result
            else ""
        )
        print(f"{name:<18}" + "".join(f"{ms:8.3f}" for ms in result["ms"]) + f" ms per image{difference}", flush=True)
    full_set_s = sum(sum(row["ms"]) for row in figures.values()) / 1000 * FULL_SET_SIZE
    full_set_cpu_s = sum(sum(row["cpu_ms"]) for row in figures.values()) / 1000 * FULL_SET_SIZE
    sets = f"{FULL_SET_SIZE:,} images x {len(CORRUPTIONS) * len(SEVERITIES)}"
    print(f"{sets}: {full_set_s:.0f} s ({full_set_cpu_s:.0f} s of CPU time)")
    if args.record:
        settings = {"images": len(images), "side": args.side, "device": device.type, "cifar10": args.cifar10}
        if device.type != "cpu":
            settings["compared"] = min(args.compare, len(images))
        write_record(
            args.record,
            "corruptions",
            settings,
            {"whole_s": full_set_s, "whole_cpu_s": full_set_cpu_s, "each": figures},
        )


def _make_images(args: argparse.Namespace) -> Tensor:
    """Return the images, uint8 (n, 3, side, side)."""
    if args.cifar10:
        return torch.from_numpy(DATASETS["cifar10"].load(args.data_folder).test.images[: args.images])
    coarse = np.random.default_rng(0).integers(0, 256, (args.images, 3, 8, 8)).astype(np.float32)
    smooth = torch.nn.functional.interpolate(torch.from_numpy(coarse), size=args.side, mode="bilinear")
    return smooth.to(torch.uint8)


def _time_corruption(
    name: str, images: Tensor, device: torch.device, photos: dict[str, FrostPhotos], num_compared: int
) -> dict[str, Any]:
    rows, device_images, compared_images = torch.arange(len(images)), images.to(device), images[:num_compared]
    # warm-up call, which is not timed
    apply_corruption(device_images[:64], name, SEVERITIES[-1], rows[:64], photos[device.type])
    result: dict[str, Any] = {"ms": [], "cpu_ms": []}
    largest, num_different = 0, 0
    for severity in SEVERITIES:
        _synchronize(device)
        wall_start_s, cpu_start_s = time.perf_counter(), time.process_time()
        corrupted = apply_corruption(device_images, name, severity, rows, photos[device.type])
        _synchronize(device)
        result["ms"].append(1000 * (time.perf_counter() - wall_start_s) / len(images))
        result["cpu_ms"].append(1000 * (time.process_time() - cpu_start_s) / len(images))
        if device.type != "cpu":
            cpu_corrupted = apply_corruption(compared_images, name, severity, rows[:num_compared], photos["cpu"])
            differences = (corrupted[:num_compared].cpu().int() - cpu_corrupted.int()).abs()
            largest, num_different = max(largest, int(differences.max())), num_different + int((differences > 0).sum())
    if device.type != "cpu":
        result |= {"largest": largest, "share": num_different / (len(SEVERITIES) * compared_images.numel())}
    return result


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
