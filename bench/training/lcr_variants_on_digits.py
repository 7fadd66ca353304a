"""Measure final ratios σ_B/σ_F and accuracies of variants of the LCR loss on digits.

    python -m bench.training.lcr_variants_on_digits [--record FILE]

The network of the demo is trained on all 1,297 training digits for 15 epochs with three paired seeds. Each variant is
trained with lambda 0, 1 and 8. Three seeds of a small network cannot decide which variant has the better accuracy. They
show whether a variant does harm, and in which direction its ratios change. The 500 test digits are evaluated after each
run. So they are no independent test for a variant that is chosen with this benchmark.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lcrbnn.device import single_thread
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import write_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train

NUM_EPOCHS, NUM_SEEDS, LCR_WEIGHTS = 15, 3, (0.0, 1.0, 8.0)

VARIANT_OPTIONS: dict[str, tuple[str, ...]] = {
    "Eq. 9, unit": (),
    "Eq. 9, unit, beta 1": ("beta=1",),
    "Eq. 9, centered": ("normalization=centered-l2",),
    "Eq. 9, unit, weights": ("reference=latent-weights",),
    "Eq. 8, unit": ("matrix=cross-gram",),
    "Eq. 8, centered": ("matrix=cross-gram", "normalization=centered-l2"),
    "Eq. 8, raw": ("matrix=cross-gram", "normalization=none"),
    "channel, unit": ("matrix=per-sample",),
}


def measure(spec: TrainSpec, progress: ProgressBar) -> tuple[float, list[float]]:
    """Train one run. Return its accuracy on the test digits and its final ratios."""
    with TemporaryDirectory() as scratch, single_thread():
        path = train(spec, Path(scratch) / "run", progress=lambda total, steps_done: progress)
        last_line = RunFolder(path).read_log()[-1]
        return evaluate(path, use_test_split=True).accuracy.top1, last_line["sigma_ratios"]


def main() -> None:
    """Train all variants and print one line per variant and lambda."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    args = parser.parse_args()
    steps_per_epoch = 21  # number of training steps per epoch: 1,297 digits in batches of 64
    progress = ProgressBar(len(VARIANT_OPTIONS) * len(LCR_WEIGHTS) * NUM_SEEDS * NUM_EPOCHS * steps_per_epoch)
    figures: dict[str, Any] = {}
    for (name, options), weight in product(VARIANT_OPTIONS.items(), LCR_WEIGHTS):
        base = TrainSpec(train_split="train+valid", lcr_weight=weight, lcr_options=options, epochs=NUM_EPOCHS)
        runs = [measure(base.replace(seed=seed), progress) for seed in range(NUM_SEEDS)]
        accuracies = [top1 for top1, _ in runs]
        ratios = [statistics.fmean(block) for block in zip(*(run_ratios for _, run_ratios in runs), strict=True)]
        figures[f"{name}, lambda {weight:g}"] = {"accuracy": accuracies, "ratios": ratios}
        ratios_text = " ".join(f"{r:.2f}" for r in ratios)
        deviation = statistics.stdev(accuracies)
        accuracy_text = f"{statistics.fmean(accuracies):5.1f} ± {deviation:.1f} %"
        print(f"{name:<22} lambda {weight:<3g} {accuracy_text}  ratios {ratios_text}", flush=True)
    if args.record:
        write_record(
            args.record,
            "digits-forms",
            {"epochs": NUM_EPOCHS, "seeds": NUM_SEEDS, "network": "resnet8-double"},
            figures,
        )


if __name__ == "__main__":
    main()
