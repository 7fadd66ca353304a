"""Measure how much LCR slows down a CPU training step of ResNet-20 (double skip, IR-Net) with batch size 128.

    python -m bench.training.lcr_step_cost [--record FILE]

The steps of all variants take turns, so that changes in machine load affect all variants. A ratio is the median time
with LCR divided by the median without. Targets, with reference `pre-binarization` and lambda > 0: at most 1.30 per
block and 1.10 per stage.
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
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import write_record

BATCH_SIZE = 128
NUM_ROUNDS = 15

VARIANTS: dict[str, dict[str, Any] | None] = {
    "without": None,
    "lambda 0": {"lcr_weight": 0.0},
    "default, per block": {},
    "default, per stage": {"granularity": "stages"},
    "Eq. 8, unit, per block": {"matrix": "cross-gram"},
    "Eq. 8, unit, per stage": {"matrix": "cross-gram", "granularity": "stages"},
    "paper (Eq. 8, raw, per layer)": {"variant": "paper"},
    "default, weights": {"reference": "latent-weights"},
    "default, teacher": {"reference": "teacher"},
    "official, teacher": {"variant": "official"},
}


def make_step(settings: dict[str, Any] | None) -> Callable[[], float]:
    """Return a function that trains one step on fixed images and returns its seconds."""
    torch.manual_seed(0)
    model = lcrbnn.create_model("resnet20-double", "irnet")
    images, labels = torch.randn(BATCH_SIZE, 3, 32, 32), torch.randint(0, 10, (BATCH_SIZE,))
    retention = None
    if settings is not None:
        needs_teacher = settings.get("reference") == "teacher" or settings.get("variant") == "official"
        teacher = lcrbnn.create_model("resnet20-relu") if needs_teacher else None
        retention = lcrbnn.Retention(model, teacher=teacher, **settings)
    parameters = [*model.parameters(), *(retention.parameters() if retention is not None else ())]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9)

    def step() -> float:
        start_s = time.perf_counter()
        loss = F.cross_entropy(model(images), labels)
        if retention is not None:
            loss = loss + retention.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - start_s

    return step


def main() -> None:
    """Time all variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    args = parser.parse_args()
    steps = {name: make_step(settings) for name, settings in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    progress = ProgressBar(NUM_ROUNDS + 1)
    for i in range(NUM_ROUNDS + 1):
        for name, step in steps.items():
            step_seconds = step()
            if i > 0:  # the first round is a warm-up and is not timed
                seconds[name].append(step_seconds)
        progress.advance(lambda: "rounds")
    baseline = statistics.median(seconds["without"])
    ratios = {name: statistics.median(s) / baseline for name, s in seconds.items()}
    threads = torch.get_num_threads()
    print(f"resnet20-double, irnet, batch {BATCH_SIZE}, {threads} threads, medians of {NUM_ROUNDS}, without = 1")
    for name, ratio in ratios.items():
        print(f"{name:<32} {ratio:6.3f}")
    if args.record:
        settings = {
            "network": "resnet20-double",
            "method": "irnet",
            "batch": BATCH_SIZE,
            "rounds": NUM_ROUNDS,
            "threads": torch.get_num_threads(),
        }
        write_record(args.record, "retention-step-cpu", settings, {"ratio_to_without": ratios})
        print(f"record: {args.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
