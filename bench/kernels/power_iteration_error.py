"""Measure how far the power iteration of training underestimates the spectral norm, on feature maps of networks.

    python -m bench.kernels.power_iteration_error [--cifar FOLDER] [--record FILE]

The network is that of the demo after five epochs on the digits. With --cifar (the folder of the binary version of
CIFAR-10), ResNet-20 is also measured, at initialization and after 150 steps. The result after 1 to 20 iterations is
compared with an SVD. This is done for the binary and the reference matrix of each block and for the ratio of their
norms, over ten batches of 128 images.
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
from lcrbnn.data.digits import load_digits
from lcrbnn.lcr.capture import CapturedMaps, FeatureMapCapture, Span, make_block_spans
from lcrbnn.lcr.lcr_variants import LcrVariant
from lcrbnn.lcr.retention_loss import compute_spectral_norms
from lcrbnn.lcr.retention_matrix import MATRIX_STACKS, Pair
from lcrbnn.lcr.spectral_norm import draw_start_vector
from lcrbnn.nn.models.network import Network
from lcrbnn.runs.record import write_record

BATCH_SIZE = 128
NUM_BATCHES = 10
ITERATION_COUNTS = (1, 2, 5, 10, 20)
MATRIX_FORMS = (("gram", "l2"), ("cross-gram", "l2"), ("cross-gram", "none"))
INITIALIZATIONS = ("random", "longest-column")


def make_measured_networks(cifar_folder: Path | None) -> Iterator[tuple[str, Network, Tensor]]:
    """Yield the name, the network and the input images of each measurement."""
    digits, _ = load_digits()
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    torch.manual_seed(0)
    model = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1)
    _train(model, images, labels, steps=100, lr=0.05)
    yield "resnet8-double, digits, 5 epochs", model, images
    if cifar_folder is not None:
        rows = np.fromfile(cifar_folder / "data_batch_1.bin", np.uint8).reshape(-1, 3073)
        images = (torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255 - 0.45) / 0.225
        labels = torch.from_numpy(rows[:, 0].astype(np.int64))
        torch.manual_seed(0)
        model = lcrbnn.create_model("resnet20-double", "irnet")
        yield "resnet20-double, CIFAR-10, fresh", model, images
        _train(model, images[BATCH_SIZE * NUM_BATCHES :], labels[BATCH_SIZE * NUM_BATCHES :], steps=150, lr=0.1)
        yield "resnet20-double, CIFAR-10, 150 steps", model, images


def _train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    for step in range(steps):
        batch = torch.arange(step * 64, (step + 1) * 64) % len(labels)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


@torch.no_grad()
def capture_block_maps(model: Network, images: Tensor) -> tuple[list[CapturedMaps], list[Span]]:
    """Return the feature maps before and after each block, batch by batch."""
    spans = make_block_spans(model.block_names)
    capture = FeatureMapCapture(model, [point for span in spans for point in span], capture_binary=True)
    maps = []
    for batch in images.split(BATCH_SIZE)[:NUM_BATCHES]:
        model(batch)
        maps.append(capture.take_maps())
    capture.close()
    return maps, spans


@torch.no_grad()
def compute_shortfalls(maps: list[CapturedMaps], spans: list[Span], variant: LcrVariant) -> dict[str, list[float]]:
    """Return 1 - value / exact value for all binary and reference matrices, and the relative error of their ratios."""
    errors: dict[str, list[float]] = {"binary": [], "reference": [], "ratio": []}
    for batch_maps in maps:
        binary = [
            (batch_maps.get_binary_map(a, weights_only=False), batch_maps.get_binary_map(b, weights_only=False))
            for a, b in spans
        ]
        reference = [(batch_maps.real[a], batch_maps.real[b]) for a, b in spans]
        fractions_by_side = {
            side: _fraction_of_exact(pairs, variant) for side, pairs in (("binary", binary), ("reference", reference))
        }
        for side, fractions in fractions_by_side.items():
            errors[side] += [1 - fraction for fraction in fractions]
        errors["ratio"] += [
            abs(b / f - 1) for b, f in zip(fractions_by_side["binary"], fractions_by_side["reference"], strict=True)
        ]
    return errors


def _fraction_of_exact(pairs: list[Pair], variant: LcrVariant) -> list[float]:
    sigmas = compute_spectral_norms(pairs, variant, draw_start_vector(BATCH_SIZE))
    return [float(sigma) / _compute_exact_norm(*pair, variant) for sigma, pair in zip(sigmas, pairs, strict=True)]


def _compute_exact_norm(front: Tensor, back: Tensor, variant: LcrVariant) -> float:
    matrix = MATRIX_STACKS[variant.matrix]([(front, back)], variant.normalization)
    norm = float(torch.linalg.matrix_norm(matrix.iteration_matrices()[0].double(), 2))
    return norm**2 if matrix.squared else norm


def main() -> None:
    """Print a table with the median and the largest relative error of power iteration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10 that contains data_batch_1.bin")
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for network_name, model, images in make_measured_networks(args.cifar):
        maps, spans = capture_block_maps(model, images)
        print(f"{network_name}: underestimation, median and largest")
        print(f"{'form, start, steps':<24}{'binary':>17}{'reference':>17}{'error of ratio':>19}")
        for (matrix, normalization), init, steps in product(MATRIX_FORMS, INITIALIZATIONS, ITERATION_COUNTS):
            variant = LcrVariant(
                matrix=matrix, normalization=normalization, power_iteration_init=init, power_iterations=steps
            )
            errors = compute_shortfalls(maps, spans, variant)
            cells = {side: {"median": statistics.median(v), "largest": max(v)} for side, v in errors.items()}
            figures.setdefault(network_name, {})[f"{matrix} {normalization}, {init} start, {steps} steps"] = cells
            row = "".join(f"{c['median']:9.1%}{c['largest']:8.1%}" for c in cells.values())
            print(f"{matrix} {normalization:<5} {init:<8} {steps:>2} {row}")
    if args.record:
        write_record(args.record, "power-iteration", {"batch": BATCH_SIZE, "batches": NUM_BATCHES}, figures)


if __name__ == "__main__":
    main()
