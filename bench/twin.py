"""How far the gradients of the compiled step are from those of its eager twin, after one step from one state.

    python -m bench.twin [--record-folder results/bench] [--rehearsal]

Relative errors: of all gradients together, and the largest of a single parameter. Beside them what they are made of:
how many signs came out differently, the error left if the eager step is given the compiled one's signs, what a
repetition of each step differs by, and, in bfloat16, how far either is from float32 and what is left of the error if
the compiler rounds after each operation, as the eager step does. The images are the embedded digits, enlarged.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from bench.one_twin import BOUNDS, Job
from bench.processes import Worker, cores, environment

MODELS = {"resnet20": "resnet20-double", "resnet18": "resnet18"}
RETENTION = ("none", "latent")
SECONDS = 540  # that a comparison may take


def main() -> None:
    """Compare all at once, a process each, and print a line each."""
    args = _arguments()
    names = args.models.split(",")
    chosen = list(product(names, args.precisions.split(","), RETENTION))
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as held:
        workers = {}
        for model, precision, retention in chosen:
            job = _job(model, precision, retention, args)
            log = Path(scratch) / f"{job.name}.log"
            surroundings = environment(cores() // len(chosen), args.rehearsal)
            workers[job.name] = Worker("bench.one_twin", job.stored(), log, surroundings)
            held.callback(workers[job.name].end)
        for worker in workers.values():
            worker.go()
        for name, worker in workers.items():
            worker.ready(SECONDS)
            print(_lines(name, worker.answer(SECONDS)), flush=True)


def _job(model: str, precision: str, retention: str, args: argparse.Namespace) -> Job:
    name = f"{model}-{precision}" + ("" if retention == "none" else f"-{retention}")
    return Job(
        name,
        MODELS[model],
        precision,
        retention,
        args.images,
        "cpu" if args.rehearsal else args.device,
        args.rehearsal,
        None if args.record_folder is None else str((args.record_folder / f"twin-{name}.json").absolute()),
    )


def _lines(name: str, found: dict[str, Any]) -> str:
    """The comparison for reading; errors are of all gradients together."""
    if set(found) == {"error"} and isinstance(found["error"], str):
        return f"{name}: failed; {found['error']}"
    error, target = found["error"], found["target"]
    verdict = "met" if target["met"] else "missed"
    lines = [
        f"{name}: {error['all']:.1e} (<= {target['at_most']:g} {verdict}), "
        f"largest {error['largest']:.1e} in {error['where']}",
        f"  repeated: fast {found['fast_again']['all']:.1e}, eager {found['eager_again']['all']:.1e}",
    ]
    signs = found["signs"]
    if "failed" in signs:
        lines.append(f"  signs: {signs['failed']}")
    else:
        same = signs["error_with_the_same_signs"]["all"]
        lines.append(f"  signs: {signs['flipped']:,} of {signs['of']:,} differ; with the same ones {same:.1e}")
    if "error_rounded_as_eager" in found:
        rounded = found["error_rounded_as_eager"]
        lines.append(
            f"  rounded as eager: {rounded['failed'] if 'failed' in rounded else format(rounded['all'], '.1e')}"
        )
    if "from_float32" in found:
        away = found["from_float32"]
        lines.append(f"  from float32: fast {away['fast']['all']:.1e}, eager {away['eager']['all']:.1e}")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default=",".join(BOUNDS))
    parser.add_argument("--record-folder", type=Path, help="write the record of each comparison into this folder")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rehearsal", action="store_true", help="a tiny network in place of each, on the CPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
