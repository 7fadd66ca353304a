"""How the cost of a step grows with processes: what two of them take on this CPU against the model, and its tables.

    python -m bench.scaling [--record FILE] [--rounds N]     measure: messages, agreement, whole steps
    python -m bench.scaling --table                          the tables of docs/scaling.md, from records and the model

The model (lcrbnn.study.scaling) gets bandwidth and latency from two sizes of messages; the other sizes, and the steps
of two processes, are then predicted.
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

from bench.processes import ROOT, Worker
from lcrbnn.errors import InputError
from lcrbnn.models import network
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.study.scaling import NETWORKS, Cluster, Link, Load, heard, table

SIZES = [1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26]  # bytes of a message
FITTED = (1 << 14, 1 << 24)
STEPS: dict[str, dict[str, Any]] = {
    "resnet20-double": {"data": "synthetic-32", "model": "resnet20-double", "images": "all", "batch": 16},
    "resnet18": {"data": "synthetic-32", "model": "resnet18", "images": "all", "batch": 4},
}
SHARED = {"resnet20-double, shared norms": {**STEPS["resnet20-double"], "batch_norm": "sync"}}
RECORD = ROOT / "results" / "bench" / "scaling-cpu.json"
LOADER = RECORD.with_name("loader-cpu.json")
GPUS = [1, 2, 4, 8, 16, 64, 256, 1000]
FILE = 110e3  # bytes: ImageNet's 1.28 million training images have some 140 GB


def measure(rounds: int, processes: int = 2) -> dict[str, Any]:
    """What processes on this machine take."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker("bench.one_rank", {}, Path(folder) / f"{r}.log", {**shared, "RANK": str(r), "LOCAL_RANK": str(r)})
            for r in range(processes)
        ]
        for worker in workers:
            worker.ready(120)
        for worker in workers:
            worker.go({"bytes": SIZES, "rounds": rounds, "steps": {**STEPS, **SHARED}})
        first, *_ = [worker.answer(600) for worker in workers]
        return first


def fit(sent: dict[str, float], n: int) -> Link:
    """The link whose ring takes what the two FITTED sizes took."""
    small, large = (sent[str(size)] for size in FITTED)
    bandwidth = 2 * (n - 1) / n * (FITTED[1] - FITTED[0]) / (large - small)
    return Link(bandwidth, (small - 2 * (n - 1) / n * FITTED[0] / bandwidth) / (2 * (n - 1)))


def compare(seen: dict[str, Any], link: Link, n: int) -> dict[str, Any]:
    """Predicted over measured: messages that were not fitted, and steps of n processes."""
    found: dict[str, Any] = {
        "messages": {size: link.ring(int(size), n) / seconds for size, seconds in seen["sent"].items()}
    }
    for name, times in seen["steps"].items():
        settings = {**STEPS, **SHARED}[name]
        model = network(settings["model"], "irnet")
        size = 4 * sum(p.numel() for p in model.parameters())
        norms = _norms(model) if settings.get("batch_norm") == "sync" else 0
        found[name] = (times["alone"] + link.ring(size, n) + 2 * norms * link.ring(0, n)) / times["together"]
    return found


def _norms(model: nn.Module) -> int:
    return sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def core_images() -> float:
    """Photographs of usual size that one core makes ready in a second: the package's loader, by its record."""
    found = read_record(LOADER)["figures"]["500x375"]["images_per_core_second"]
    return float(found["loader"])


def load_of(name: str) -> Load:
    """ResNet-18 at 224 pixels: its step on an H200 is that of the record."""
    record = read_record(ROOT / "results" / "bench" / "wordy" / "gpu-steps-resnet18-224.json")
    if record["settings"]["model"] != name:
        raise InputError(f"the record is of {record['settings']['model']}; got {name}")
    known = record["figures"]["ms_per_step"] / 1e3 / record["settings"]["batch"]
    model = network(name, "irnet")
    return Load(sum(p.numel() for p in model.parameters()), known, _norms(model), FILE)


def tables() -> str:
    """The tables of docs/scaling.md."""
    core = core_images()
    load = load_of("resnet18-double-imagenet")
    parts: list[str] = []
    for name, link in NETWORKS.items():
        cluster = Cluster(link, core_images=core)
        sizes = GPUS if not parts else [n for n in GPUS if n > cluster.gpus]
        parts.append(
            f"Machines joined by {name}, 256 images a GPU:\n\n" + table(load, cluster, sizes, 256, 1_281_167, 120)
        )
    few = table(load, Cluster(NETWORKS["8 x 400 Gb/s"], core_images=core), [8, 16, 32], 8, 1_281_167, 120)
    parts.append("8 images a GPU (on 32 of them the paper's batch of 256):\n\n" + few)
    waits = ", ".join(f"{heard(n):.2g} s with {n:,}" for n in (2, 8, 64, 1000))
    parts.append(f"A signal is heard by all processes after at most {waits}.")
    return "\n\n".join(parts)


def main() -> None:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(tables())
        return
    torch.set_num_threads(1)
    seen = measure(args.rounds)
    link = fit(seen["sent"], 2)
    figures = {
        **seen,
        "bandwidth": link.bandwidth,
        "latency": link.latency,
        "predicted_over_measured": compare(seen, link, 2),
    }
    print(json.dumps(figures, indent=1))
    if args.record is not None:
        settings = {"processes": 2, "rounds": args.rounds, "fitted": FITTED, "steps": {**STEPS, **SHARED}}
        write_record(args.record, "scaling", settings, {**figures, "load": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
