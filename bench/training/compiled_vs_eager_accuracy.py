"""Compare the validation accuracy after training with the compiled and with the eager step, paired by seed.

    python -m bench.training.compiled_vs_eager_accuracy [--recipe digits] [--precision bfloat16]
        [--record bench/records/twin-means.json]

The gradients of both steps agree within rounding (bench.training.gradient_agreement). Rounding flips some signs, so two
runs with the same seed diverge. This benchmark therefore compares the final accuracies. The interval of the paired
differences must include 0 and be as narrow as the number of seeds allows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.recipes.recipe import find_recipe
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train_parallel

STEP_MODES = ("eager", "compiled")


def main() -> None:
    """Train all seeds with both kinds of step. Print and record the differences in accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lcr-gradient-ratio", type=float, default=0.0, help="ratio of LCR gradient to task gradient")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    spec = find_recipe(args.recipe).spec.replace(
        train_split="train",
        epochs=args.epochs,
        precision=args.precision,
        deterministic=False,
        lcr_gradient_ratio=args.lcr_gradient_ratio,
    )
    with tempfile.TemporaryDirectory() as scratch:
        accuracies = {step_mode: _train_seeds(spec, step_mode, args.seeds, Path(scratch)) for step_mode in STEP_MODES}
    difference = compare_paired(accuracies["eager"], accuracies["compiled"])
    for step_mode, values in accuracies.items():
        print(f"{step_mode}: {' '.join(f'{v:.2f}' for v in values)} % validation accuracy")
    print(f"compiled - eager: {difference}; visible {difference.detectable:.2f}")
    if args.record is not None:
        figures: dict[str, Any] = {"valid": accuracies, "difference": difference._asdict()}
        write_record(args.record, "twin-means", spec.to_dict() | {"seed": list(range(args.seeds))}, figures)


def _train_seeds(spec: TrainSpec, step_mode: str, num_seeds: int, scratch: Path) -> list[float]:
    folders = [scratch / step_mode / f"seed-{seed}" for seed in range(num_seeds)]
    jobs = {folder: spec.replace(seed=seed) for seed, folder in enumerate(folders)}
    train_parallel(jobs, RunOptions(step_mode=step_mode))
    return [float(read_record(folder / "record.json")["figures"]["last_epoch"]["valid_top1"]) for folder in folders]


if __name__ == "__main__":
    main()
