"""Which forms of the retention loss bring the ratios towards 1, and what they do to accuracy: a screening on digits.

    python -m bench.digits_forms [--record FILE]

The demo's network and loop, 15 epochs, three paired seeds, each form with lambda 0, 1 and 8. Three seeds of a small
network decide nothing about accuracy; they show where a form does harm, and which way its ratios move.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import write_record
from lcrbnn.study.demo import train

EPOCHS, SEEDS, WEIGHTS = 15, 3, (0.0, 1.0, 8.0)

FORMS: dict[str, dict[str, Any]] = {
    "Eq. 9, unit": {},
    "Eq. 9, unit, beta 1": {"beta": 1.0},
    "Eq. 9, centered": {"normalization": "centered"},
    "Eq. 9, unit, weights": {"reference": "weights"},
    "Eq. 8, unit": {"matrix": "batch"},
    "Eq. 8, centered": {"matrix": "batch", "normalization": "centered"},
    "Eq. 8, raw": {"matrix": "batch", "normalization": "raw"},
    "channel, unit": {"matrix": "channel"},
}


def main() -> None:
    """Run all and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    args = parser.parse_args()
    progress = Progress(len(FORMS) * len(WEIGHTS) * SEEDS * EPOCHS)
    figures: dict[str, Any] = {}
    for (name, form), weight in product(FORMS.items(), WEIGHTS):
        curves = [train(weight, seed, EPOCHS, progress, **form) for seed in range(SEEDS)]
        accuracy = [curve.accuracy[-1] for curve in curves]
        ratios = [statistics.fmean(block) for block in zip(*(curve.ratios[-1] for curve in curves), strict=True)]
        figures[f"{name}, lambda {weight:g}"] = {"accuracy": accuracy, "ratios": ratios}
        shown = " ".join(f"{r:.2f}" for r in ratios)
        spread = statistics.stdev(accuracy)
        print(
            f"{name:<22} lambda {weight:<3g} {statistics.fmean(accuracy):5.1f} ± {spread:.1f} %  ratios {shown}",
            flush=True,
        )
    if args.record:
        write_record(
            args.record, "digits-forms", {"epochs": EPOCHS, "seeds": SEEDS, "network": "resnet8-double"}, figures
        )


if __name__ == "__main__":
    main()
