"""What an SVD of the retention matrices would cost beside their power iteration, and beside a training step.

    python -m bench.exact_norm [--record FILE] [--rounds 15]

The matrices of one step: those of the nine blocks of ResNet-20, binary and reference, Eq. 9 over a batch of 128, made
of maps of noise at the networks' sizes. Their largest eigenvalues, with the gradient, by five steps of power iteration
as in training, and by torch's SVD, all at once; in turns with a plain training step of the network without retention.
On a CPU the seconds are those of the process, on a GPU those of the clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.regularizers import DEVICE, Trainer, timed
from lcrbnn.retention.spectral import heaviest_column, iterate, value
from lcrbnn.runs.record import write_record

BATCH = 128
STEPS = 5
SIZES = (16 * 32 * 32, 32 * 16 * 16, 64 * 8 * 8)  # of a map in the three stages, three blocks each


def matrices() -> Tensor:
    """A^T A of unit columns for nine blocks, binary and real: (18, 128, 128)."""
    torch.manual_seed(0)
    real = [torch.randn(size, BATCH) for size in SIZES for _ in range(3)]
    maps = [torch.nn.functional.normalize(a, dim=0) for a in [*real, *(a.sign() for a in real)]]
    return torch.stack([a.T @ a for a in maps]).to(DEVICE)


def by_power(given: Tensor) -> Tensor:
    """The largest eigenvalues, as training takes them."""
    with torch.no_grad():
        v, before = iterate(given, heaviest_column(given), STEPS, squared=False)
    return value(given, v, before, squared=False)


def by_svd(given: Tensor) -> Tensor:
    """The same, exact."""
    return torch.linalg.matrix_norm(given, 2)


def with_gradient(norms: Callable[[Tensor], Tensor], given: Tensor) -> Callable[[], object]:
    """What is timed."""
    return lambda: norms(given.requires_grad_()).sum().backward()


def measure(rounds: int) -> dict[str, float]:
    """Median seconds of each, in turns; the first round warms up."""
    trainer = Trainer("none", False)
    works = {
        "step": trainer.learn,
        "power": with_gradient(by_power, matrices()),
        "svd": with_gradient(by_svd, matrices()),
    }
    spent: dict[str, list[float]] = {name: [] for name in works}
    for i in range(rounds + 1):
        for name, work in works.items():
            wall, busy = timed(work)
            if i > 0:
                spent[name].append(wall if DEVICE.type == "cuda" else busy)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    parser.add_argument("--rounds", type=int, default=15, help="timed turns")
    args = parser.parse_args()
    seconds = measure(args.rounds)
    for name, found in seconds.items():
        print(f"{name:<6} {1e3 * found:8.2f} ms  {found / seconds['step']:.3f} of a step")
    if args.record:
        settings = {"network": "resnet20-double", "batch": BATCH, "matrices": 18, "power_steps": STEPS}
        settings |= {"rounds": args.rounds, "threads": torch.get_num_threads(), "device": DEVICE.type}
        figures = {f"{name}_seconds": found for name, found in seconds.items()}
        write_record(args.record, "exact-norm", settings, figures)
        print(f"record: {args.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
