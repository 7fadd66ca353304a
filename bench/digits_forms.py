"""Which forms of the retention loss bring the ratios towards 1, and what they do to accuracy: a screening on digits.

    python -m bench.digits_forms [--record FILE]

The demo's network on all 1,297 training digits, 15 epochs, three paired seeds, each form with lambda 0, 1 and 8. Three
seeds of a small network decide nothing about accuracy; they show where a form does harm, and which way its ratios move.
The 500 other digits are read after each run: a screening, so they are no test of what it picks.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import write_record
from lcrbnn.study.demo import one_thread
from lcrbnn.train import Spec
from lcrbnn.train.reading import evaluate
from lcrbnn.train.run import train

EPOCHS, SEEDS, WEIGHTS = 15, 3, (0.0, 1.0, 8.0)

FORMS: dict[str, tuple[str, ...]] = {
    "Eq. 9, unit": (),
    "Eq. 9, unit, beta 1": ("beta=1",),
    "Eq. 9, centered": ("normalization=centered",),
    "Eq. 9, unit, weights": ("reference=weights",),
    "Eq. 8, unit": ("matrix=batch",),
    "Eq. 8, centered": ("matrix=batch", "normalization=centered"),
    "Eq. 8, raw": ("matrix=batch", "normalization=raw"),
    "channel, unit": ("matrix=channel",),
}


def measure(spec: Spec, progress: Progress) -> tuple[float, list[float]]:
    """Accuracy on the other digits and the final ratios of one run."""
    with TemporaryDirectory() as scratch, one_thread():
        path = train(spec, Path(scratch) / "run", progress=lambda total, done: progress)
        last = RunFolder(path).read_log()[-1]
        return evaluate(path, final=True).accuracy.top1, last["ratios"]


def main() -> None:
    """Run all and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    args = parser.parse_args()
    steps = 21  # of an epoch: 1,297 digits in batches of 64
    progress = Progress(len(FORMS) * len(WEIGHTS) * SEEDS * EPOCHS * steps)
    figures: dict[str, Any] = {}
    for (name, form), weight in product(FORMS.items(), WEIGHTS):
        base = Spec(images="all", weight=weight, form_options=form, epochs=EPOCHS)
        runs = [measure(base.but(seed=seed), progress) for seed in range(SEEDS)]
        accuracy = [found for found, _ in runs]
        ratios = [statistics.fmean(block) for block in zip(*(seen for _, seen in runs), strict=True)]
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
