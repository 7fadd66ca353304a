"""Measure the communication cost of two processes on this CPU, compare it with the model, and render its tables.

    python -m bench.distributed.scaling [--record FILE] [--rounds N]     measure messages, agreement and steps
    python -m bench.distributed.scaling --table                          print the tables of docs/scaling.md

The bandwidth and latency of the model (bench.distributed.scaling_model) are fitted to two message sizes. The times of
the other sizes and of the steps of two processes are then predictions. The tables use the records and the model.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.distributed.scaling_model import NETWORKS, Cluster, Link, Load, predict_signal_delay, render_scaling_table
from bench.worker_processes import ROOT, Worker
from lcrbnn.errors import InputError
from lcrbnn.nn.models.model_registry import create_model
from lcrbnn.runs.record import read_record, write_record

MESSAGE_SIZES = [1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26]  # message sizes in bytes
FITTED_SIZES = (1 << 14, 1 << 24)
STEP_SETTINGS: dict[str, dict[str, Any]] = {
    "resnet20-double": {
        "dataset": "synthetic-32",
        "model": "resnet20-double",
        "train_split": "train+valid",
        "batch_size": 16,
    },
    "resnet18": {"dataset": "synthetic-32", "model": "resnet18", "train_split": "train+valid", "batch_size": 4},
}
SYNC_STEP_SETTINGS = {"resnet20-double, shared norms": {**STEP_SETTINGS["resnet20-double"], "batch_norm": "sync"}}
RECORD = ROOT / "bench" / "records" / "scaling-cpu.json"
LOADER_RECORD = RECORD.with_name("loader-cpu.json")
GPU_COUNTS = [1, 2, 4, 8, 16, 64, 256, 1000]
# Size of an image file in bytes; the 1.28 million training images of ImageNet take about 140 GB
IMAGE_FILE_BYTES = 110e3


def measure(rounds: int, num_processes: int = 2) -> dict[str, Any]:
    """Start worker processes on this machine.

    They time messages, agreement between the processes, and training steps.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    environment = {
        "WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker(
                "bench.distributed.all_reduce_worker",
                {},
                Path(folder) / f"{r}.log",
                {**environment, "RANK": str(r), "LOCAL_RANK": str(r)},
            )
            for r in range(num_processes)
        ]
        for worker in workers:
            worker.wait_until_ready(120)
        for worker in workers:
            worker.send_only_request(
                {"bytes": MESSAGE_SIZES, "rounds": rounds, "steps": {**STEP_SETTINGS, **SYNC_STEP_SETTINGS}}
            )
        first, *_ = [worker.wait_for_result(600) for worker in workers]
        return first


def fit_link(message_times: dict[str, float], n: int) -> Link:
    """Return the bandwidth and latency for which a ring all-reduce takes the measured times of the two FITTED_SIZES."""
    small, large = (message_times[str(size)] for size in FITTED_SIZES)
    bandwidth = 2 * (n - 1) / n * (FITTED_SIZES[1] - FITTED_SIZES[0]) / (large - small)
    return Link(bandwidth, (small - 2 * (n - 1) / n * FITTED_SIZES[0] / bandwidth) / (2 * (n - 1)))


def compare_with_model(measured: dict[str, Any], link: Link, n: int) -> dict[str, Any]:
    """Return the ratio of predicted to measured time for all message sizes and for training steps of n processes."""
    ratios: dict[str, Any] = {
        "messages": {size: link.ring_seconds(int(size), n) / seconds for size, seconds in measured["sent"].items()}
    }
    for name, times in measured["steps"].items():
        settings = {**STEP_SETTINGS, **SYNC_STEP_SETTINGS}[name]
        model = create_model(settings["model"], "irnet")
        size = 4 * sum(p.numel() for p in model.parameters())
        num_norms = _count_batch_norms(model) if settings.get("batch_norm") == "sync" else 0
        ratios[name] = (times["alone"] + link.ring_seconds(size, n) + 2 * num_norms * link.ring_seconds(0, n)) / times[
            "together"
        ]
    return ratios


def _count_batch_norms(model: nn.Module) -> int:
    return sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def read_images_per_core_second() -> float:
    """Return how many photos of ImageNet's average size the data loader prepares per CPU second.

    The number is from its record.
    """
    rates = read_record(LOADER_RECORD)["figures"]["500x375"]["images_per_core_second"]
    return float(rates["loader"])


def read_load(name: str) -> Load:
    """Return the workload of ResNet-18 at 224 pixels. The time of a step on an H200 is from the record."""
    record = read_record(ROOT / "bench" / "records" / "wordy" / "gpu-steps-resnet18-224.json")
    if record["settings"]["model"] != name:
        raise InputError(f"the record is for {record['settings']['model']}; got {name}")
    image_seconds = record["figures"]["ms_per_step"] / 1e3 / record["settings"]["batch_size"]
    model = create_model(name, "irnet")
    return Load(sum(p.numel() for p in model.parameters()), image_seconds, _count_batch_norms(model), IMAGE_FILE_BYTES)


def render_tables() -> str:
    """Return the tables of docs/scaling.md as Markdown."""
    images_per_core_s = read_images_per_core_second()
    load = read_load("resnet18-double-imagenet")
    parts: list[str] = []
    for name, link in NETWORKS.items():
        cluster = Cluster(link, images_per_core_s=images_per_core_s)
        sizes = GPU_COUNTS if not parts else [n for n in GPU_COUNTS if n > cluster.gpus_per_machine]
        parts.append(
            f"Machines connected by {name}, 256 images per GPU:\n\n"
            + render_scaling_table(load, cluster, sizes, 256, 1_281_167, 120)
        )
    small_batch_table = render_scaling_table(
        load, Cluster(NETWORKS["8 x 400 Gb/s"], images_per_core_s=images_per_core_s), [8, 16, 32], 8, 1_281_167, 120
    )
    parts.append("8 images per GPU (with 32 GPUs, this is the paper's batch size of 256):\n\n" + small_batch_table)
    delays = ", ".join(f"{predict_signal_delay(n):.2g} s with {n:,}" for n in (2, 8, 64, 1000))
    parts.append(f"A signal reaches all processes after at most {delays}.")
    return "\n\n".join(parts)


def main() -> None:
    """Measure and record, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(render_tables())
        return
    torch.set_num_threads(1)
    measured = measure(args.rounds)
    link = fit_link(measured["sent"], 2)
    figures = {
        **measured,
        "bandwidth": link.bandwidth,
        "latency": link.latency,
        "predicted_over_measured": compare_with_model(measured, link, 2),
    }
    print(json.dumps(figures, indent=1))
    if args.record is not None:
        settings = {
            "processes": 2,
            "rounds": args.rounds,
            "fitted": FITTED_SIZES,
            "steps": {**STEP_SETTINGS, **SYNC_STEP_SETTINGS},
        }
        write_record(args.record, "scaling", settings, {**figures, "load": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
