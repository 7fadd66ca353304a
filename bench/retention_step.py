"""What retention costs in a CPU training step: ResNet-20 (double skip, IR-Net), batch 128, as ratios of one run.

    python -m bench.retention_step [--record FILE]

Steps of all variants are interleaved, so that a drift of the machine meets all of them; a ratio is that of medians.
Goals, with reference `latent` and lambda > 0: at most 1.30 per block and 1.10 per stage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import lcrbnn
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import write_record

BATCH = 128
ROUNDS = 15

VARIANTS: dict[str, dict[str, Any] | None] = {
    "without": None,
    "lambda 0": {"weight": 0.0},
    "default, per block": {},
    "default, per stage": {"spans": "stages"},
    "Eq. 8, unit, per block": {"matrix": "batch"},
    "Eq. 8, unit, per stage": {"matrix": "batch", "spans": "stages"},
    "paper (Eq. 8, raw, per layer)": {"form": "paper"},
    "default, weights": {"reference": "weights"},
    "default, teacher": {"reference": "teacher"},
    "official, teacher": {"form": "official"},
}


def make_step(settings: dict[str, Any] | None) -> Callable[[], float]:
    """A closure that trains one step on fixed images and returns its seconds."""
    torch.manual_seed(0)
    model = lcrbnn.network("resnet20-double", "irnet")
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    retention = None
    if settings is not None:
        needs_teacher = settings.get("reference") == "teacher" or settings.get("form") == "official"
        teacher = lcrbnn.network("resnet20-relu") if needs_teacher else None
        retention = lcrbnn.Retention(model, teacher=teacher, **settings)
    learned = [*model.parameters(), *(retention.parameters() if retention is not None else ())]
    optimizer = torch.optim.SGD(learned, 0.01, momentum=0.9)

    def step() -> float:
        began = time.perf_counter()
        loss = F.cross_entropy(model(images), labels)
        if retention is not None:
            loss = loss + retention.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    return step


def main() -> None:
    """Time all variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    args = parser.parse_args()
    steps = {name: make_step(settings) for name, settings in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    progress = Progress(ROUNDS + 1)
    for i in range(ROUNDS + 1):
        for name, step in steps.items():
            spent = step()
            if i > 0:  # the first round warms up
                seconds[name].append(spent)
        progress.advance(lambda: "rounds")
    base = statistics.median(seconds["without"])
    ratios = {name: statistics.median(s) / base for name, s in seconds.items()}
    print(f"resnet20-double, irnet, batch {BATCH}, {torch.get_num_threads()} threads, medians of {ROUNDS}, without = 1")
    for name, ratio in ratios.items():
        print(f"{name:<32} {ratio:6.3f}")
    if args.record:
        settings = {
            "network": "resnet20-double",
            "method": "irnet",
            "batch": BATCH,
            "rounds": ROUNDS,
            "threads": torch.get_num_threads(),
        }
        write_record(args.record, "retention-step-cpu", settings, {"ratio_to_without": ratios})
        print(f"record: {args.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
