"""How far the power iteration of training falls short of the spectral norm, on the maps of real networks.

    python -m bench.power_iteration [--cifar FOLDER] [--record FILE]

The demo's network after five epochs on the digits; with --cifar (a folder of the binary version) also ResNet-20, fresh
and after 150 steps. The value after 1 to 20 steps is compared with an SVD, for the binary and the reference matrix of
each block and for their ratio, over ten batches of 128.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.data import load_digits
from lcrbnn.models import Network
from lcrbnn.retention import Form
from lcrbnn.retention.capture import Capture, Maps, Span, across
from lcrbnn.retention.loss import Pair, spectral_norms
from lcrbnn.retention.matrix import MATRICES
from lcrbnn.retention.spectral import random_start
from lcrbnn.runs.record import write_record

BATCH = 128
BATCHES = 10
STEPS = (1, 2, 5, 10, 20)
FORMS = (("square", "unit"), ("batch", "unit"), ("batch", "raw"))
STARTS = ("random", "heaviest")


def subjects(cifar: Path | None) -> Iterator[tuple[str, Network, Tensor]]:
    """Networks with images to measure them on."""
    digits, _ = load_digits()
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    torch.manual_seed(0)
    model = lcrbnn.network("resnet8-double", "irnet", in_channels=1)
    _train(model, images, labels, steps=100, rate=0.05)
    yield "resnet8-double, digits, 5 epochs", model, images
    if cifar is not None:
        rows = np.fromfile(cifar / "data_batch_1.bin", np.uint8).reshape(-1, 3073)
        images = (torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255 - 0.45) / 0.225
        labels = torch.from_numpy(rows[:, 0].astype(np.int64))
        torch.manual_seed(0)
        model = lcrbnn.network("resnet20-double", "irnet")
        yield "resnet20-double, CIFAR-10, fresh", model, images
        _train(model, images[BATCH * BATCHES :], labels[BATCH * BATCHES :], steps=150, rate=0.1)
        yield "resnet20-double, CIFAR-10, 150 steps", model, images


def _train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, rate: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    for step in range(steps):
        batch = torch.arange(step * 64, (step + 1) * 64) % len(labels)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


@torch.no_grad()
def collect(model: Network, images: Tensor) -> tuple[list[Maps], list[Span]]:
    """The maps at both ends of each block, batch by batch."""
    spans = across(model.blocks)
    capture = Capture(model, [point for span in spans for point in span], signs=True)
    maps = []
    for batch in images.split(BATCH)[:BATCHES]:
        model(batch)
        maps.append(capture.take())
    capture.close()
    return maps, spans


@torch.no_grad()
def shortfalls(maps: list[Maps], spans: list[Span], form: Form) -> dict[str, list[float]]:
    """1 - value / truth of every binary and reference matrix, and how far off that puts their ratio."""
    found: dict[str, list[float]] = {"binary": [], "reference": [], "ratio": []}
    for shown in maps:
        binary = [(shown.binarised(a, weights_only=False), shown.binarised(b, weights_only=False)) for a, b in spans]
        reference = [(shown.real[a], shown.real[b]) for a, b in spans]
        low = {side: _share(pairs, form) for side, pairs in (("binary", binary), ("reference", reference))}
        for side, shares in low.items():
            found[side] += [1 - share for share in shares]
        found["ratio"] += [abs(b / f - 1) for b, f in zip(low["binary"], low["reference"], strict=True)]
    return found


def _share(pairs: list[Pair], form: Form) -> list[float]:
    sigmas = spectral_norms(pairs, form, random_start(BATCH))
    return [float(sigma) / _truth(*pair, form) for sigma, pair in zip(sigmas, pairs, strict=True)]


def _truth(front: Tensor, back: Tensor, form: Form) -> float:
    matrix = MATRICES[form.matrix](front, back, form.normalization)
    norm = float(torch.linalg.matrix_norm(matrix.small()[0].double(), 2))
    return norm**2 if matrix.squared else norm


def main() -> None:
    """Print a table of median and largest shortfall."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cifar", type=Path, help="folder with data_batch_1.bin")
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for subject, model, images in subjects(args.cifar):
        maps, spans = collect(model, images)
        print(f"{subject}: too low by, median and largest")
        print(f"{'form, start, steps':<24}{'binary':>17}{'reference':>17}{'error of ratio':>19}")
        for (matrix, normalization), start, steps in product(FORMS, STARTS, STEPS):
            form = Form(matrix=matrix, normalization=normalization, start=start, iterations=steps)
            found = shortfalls(maps, spans, form)
            cells = {side: {"median": statistics.median(v), "largest": max(v)} for side, v in found.items()}
            figures.setdefault(subject, {})[f"{matrix} {normalization}, {start} start, {steps} steps"] = cells
            row = "".join(f"{c['median']:9.1%}{c['largest']:8.1%}" for c in cells.values())
            print(f"{matrix} {normalization:<5} {start:<8} {steps:>2} {row}")
    if args.record:
        write_record(args.record, "power-iteration", {"batch": BATCH, "batches": BATCHES}, figures)


if __name__ == "__main__":
    main()
