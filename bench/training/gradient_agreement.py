"""Compare the gradients of the compiled and of the eager step, after one step from the same state.

    python -m bench.training.gradient_agreement [--record-folder FOLDER] [--rehearsal]

The errors are relative. One is the error of all gradients together, the other is the largest error of a single
parameter. Further figures explain them: the number of flipped signs, the error if the eager step uses the signs of the
compiled step, and the difference between two repetitions of each step. In bfloat16, there are two more: the distance of
both steps from float32, and the error if the compiler rounds after every operation like the eager step. The images are
enlarged digits of the package.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from bench.training.gradient_agreement_worker import MAX_RELATIVE_ERRORS, Job
from bench.worker_processes import Worker, count_cores, make_compiler_environment

MODELS = {"resnet20": "resnet20-double", "resnet18": "resnet18"}
ADDED_LOSSES_COMPARED = ("none", "latent")
COMPARISON_TIMEOUT_S = 540


def main() -> None:
    """Run all comparisons in parallel processes and print the results."""
    args = _parse_arguments()
    names = args.models.split(",")
    comparisons = list(product(names, args.precisions.split(","), ADDED_LOSSES_COMPARED))
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        workers = {}
        for model, precision, added_loss in comparisons:
            job = _make_job(model, precision, added_loss, args)
            log = Path(scratch) / f"{job.name}.log"
            environment = make_compiler_environment(count_cores() // len(comparisons), args.rehearsal)
            workers[job.name] = Worker("bench.training.gradient_agreement_worker", job.to_json(), log, environment)
            stack.callback(workers[job.name].close)
        for worker in workers.values():
            worker.send_only_request()
        for name, worker in workers.items():
            worker.wait_until_ready(COMPARISON_TIMEOUT_S)
            print(_format_result(name, worker.wait_for_result(COMPARISON_TIMEOUT_S)), flush=True)


def _make_job(model: str, precision: str, added_loss: str, args: argparse.Namespace) -> Job:
    name = f"{model}-{precision}" + ("" if added_loss == "none" else f"-{added_loss}")
    return Job(
        name,
        MODELS[model],
        precision,
        added_loss,
        args.images,
        "cpu" if args.rehearsal else args.device,
        args.rehearsal,
        None if args.record_folder is None else str((args.record_folder / f"twin-{name}.json").absolute()),
    )


def _format_result(name: str, result: dict[str, Any]) -> str:
    """Return the comparison as text, with the relative errors of all gradients together."""
    if set(result) == {"error"} and isinstance(result["error"], str):
        return f"{name}: failed; {result['error']}"
    error, target = result["error"], result["target"]
    verdict = "met" if target["met"] else "missed"
    lines = [
        f"{name}: {error['all']:.1e} (<= {target['at_most']:g} {verdict}), "
        f"largest {error['largest']:.1e} in {error['where']}",
        f"  repeated: fast {result['fast_again']['all']:.1e}, eager {result['eager_again']['all']:.1e}",
    ]
    signs = result["signs"]
    if "failed" in signs:
        lines.append(f"  signs: {signs['failed']}")
    else:
        same_signs_error = signs["error_with_the_same_signs"]["all"]
        lines.append(
            f"  signs: {signs['flipped']:,} of {signs['of']:,} differ; with the same ones {same_signs_error:.1e}"
        )
    if "error_rounded_as_eager" in result:
        rounded_error = result["error_rounded_as_eager"]
        text = rounded_error["failed"] if "failed" in rounded_error else format(rounded_error["all"], ".1e")
        lines.append(f"  rounded as eager: {text}")
    if "from_float32" in result:
        float32_errors = result["from_float32"]
        lines.append(
            f"  from float32: fast {float32_errors['fast']['all']:.1e}, eager {float32_errors['eager']['all']:.1e}"
        )
    return "\n".join(lines)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default=",".join(MAX_RELATIVE_ERRORS))
    parser.add_argument("--record-folder", type=Path, help="write the record of each comparison to this folder")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--rehearsal", action="store_true", help="run tiny networks on the CPU, to check that the benchmark works"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
