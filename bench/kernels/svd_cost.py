"""Measure the cost of an SVD of the LCR matrices, compared with power iteration and with a training step.

    python -m bench.kernels.svd_cost [--record FILE] [--rounds 15]

The matrices are those of one step: nine blocks of ResNet-20, binary and reference, Eq. 9 over a batch of 128, made from
noise maps with the sizes of the network. Their largest eigenvalues and gradients are computed by five power iterations,
as in training, and by torch's SVD of the whole stack. Both alternate with a training step without LCR. The times are
CPU seconds of the process on a CPU and wall seconds on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.training.regularizer_comparison import DEVICE, VariantTrainer, time_call
from lcrbnn.lcr.spectral_norm import pick_longest_column, power_iterate, rayleigh_value
from lcrbnn.runs.record import write_record

BATCH_SIZE = 128
NUM_ITERATIONS = 5
# sizes of the feature maps in the three stages, each of which has three blocks
MAP_SIZES = (16 * 32 * 32, 32 * 16 * 16, 64 * 8 * 8)


def make_gram_matrices() -> Tensor:
    """Return A^T A for nine blocks, binary and real, as (18, 128, 128). The columns of A have length 1."""
    torch.manual_seed(0)
    real = [torch.randn(size, BATCH_SIZE) for size in MAP_SIZES for _ in range(3)]
    maps = [torch.nn.functional.normalize(a, dim=0) for a in [*real, *(a.sign() for a in real)]]
    return torch.stack([a.T @ a for a in maps]).to(DEVICE)


def norms_by_power_iteration(matrices: Tensor) -> Tensor:
    """Return the largest eigenvalue of each matrix by power iteration, as in training."""
    with torch.no_grad():
        v, v_before = power_iterate(matrices, pick_longest_column(matrices), NUM_ITERATIONS, squared=False)
    return rayleigh_value(matrices, v, v_before, squared=False)


def norms_by_svd(matrices: Tensor) -> Tensor:
    """Return the exact largest eigenvalue of each matrix, from an SVD."""
    return torch.linalg.matrix_norm(matrices, 2)


def make_timed_call(compute_norms: Callable[[Tensor], Tensor], matrices: Tensor) -> Callable[[], object]:
    """Return a function that computes the norms and their gradient and can be timed."""
    return lambda: compute_norms(matrices.requires_grad_()).sum().backward()


def measure(rounds: int) -> dict[str, float]:
    """Return the median seconds of each call. The calls take turns, and the first round is a warm-up."""
    trainer = VariantTrainer("none", False)
    calls = {
        "step": trainer.train_step,
        "power": make_timed_call(norms_by_power_iteration, make_gram_matrices()),
        "svd": make_timed_call(norms_by_svd, make_gram_matrices()),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 1):
        for name, call in calls.items():
            wall, cpu = time_call(call)
            if i > 0:
                times[name].append(wall if DEVICE.type == "cuda" else cpu)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    """Measure the median times and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    parser.add_argument("--rounds", type=int, default=15, help="number of timed rounds")
    args = parser.parse_args()
    seconds = measure(args.rounds)
    for name, median_s in seconds.items():
        print(f"{name:<6} {1e3 * median_s:8.2f} ms  {median_s / seconds['step']:.3f} of a step")
    if args.record:
        settings = {"network": "resnet20-double", "batch": BATCH_SIZE, "matrices": 18, "power_steps": NUM_ITERATIONS}
        settings |= {"rounds": args.rounds, "threads": torch.get_num_threads(), "device": DEVICE.type}
        figures = {f"{name}_seconds": median_s for name, median_s in seconds.items()}
        write_record(args.record, "exact-norm", settings, figures)
        print(f"record: {args.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
