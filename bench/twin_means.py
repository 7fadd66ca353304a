"""Whether the fast step trains as well as its eager twin: validation accuracies of paired seeds after 20 epochs.

    python -m bench.twin_means [--recipe digits] [--precision bfloat16] [--record results/bench/twin-means.json]

A step's gradients agree within rounding (bench.twin), and rounding turns signs, so two runs of one seed part ways. What
has to agree is where they arrive: the interval of the paired differences has 0 in it, and is as narrow as seeds allow.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from lcrbnn.runs.record import read_record, write_record
from lcrbnn.study.paired import paired
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.recipes import find_recipe
from lcrbnn.train.run import train_together

KINDS = ("eager", "fast")


def main() -> None:
    """Train the seeds both ways, print and record what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.0, help="of retention in the gradient")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    spec = find_recipe(args.recipe).spec.but(
        images="train", epochs=args.epochs, precision=args.precision, deterministic=False, share=args.share
    )
    with tempfile.TemporaryDirectory() as scratch:
        found = {kind: _accuracies(spec, kind, args.seeds, Path(scratch)) for kind in KINDS}
    difference = paired(found["eager"], found["fast"])
    for kind, values in found.items():
        print(f"{kind}: {' '.join(f'{v:.2f}' for v in values)} % of the validation images")
    print(f"fast - eager: {difference}; visible {difference.visible:.2f}")
    if args.record is not None:
        figures: dict[str, Any] = {"valid": found, "difference": difference._asdict()}
        write_record(args.record, "twin-means", spec.stored() | {"seed": list(range(args.seeds))}, figures)


def _accuracies(spec: Spec, kind: str, seeds: int, scratch: Path) -> list[float]:
    folders = [scratch / kind / f"seed-{seed}" for seed in range(seeds)]
    jobs = {folder: spec.but(seed=seed) for seed, folder in enumerate(folders)}
    train_together(jobs, Options(step=kind))
    return [float(read_record(folder / "record.json")["figures"]["last"]["valid"]) for folder in folders]


if __name__ == "__main__":
    main()
