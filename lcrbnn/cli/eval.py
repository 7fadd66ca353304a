"""`lcrbnn eval` measures the accuracy of runs and of networks of the zoo."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.model_arguments import ZOO_HELP
from lcrbnn.cli.run_options import add_data_folder_option, add_device_option, add_worker_options
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from lcrbnn.train.setup.options import RunOptions
    from lcrbnn.train.validation import Accuracy

EXAMPLES = ("lcrbnn eval runs/digits", "lcrbnn eval runs/digits --test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the split and the options of evaluation."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help=f"folder of a run, folder with several seed-N runs, or {ZOO_HELP}; networks of the zoo are evaluated on "
        "the test set",
    )
    parser.add_argument(
        "--test",
        action="store_true",
        help="evaluate the test set of a finished run; each test result is added to its record",
    )
    add_device_option(parser)
    add_data_folder_option(parser)
    add_worker_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Print one line per run, and mean and standard deviation of several seeds."""
    from lcrbnn.evaluation.evaluate import check_evaluable, evaluate
    from lcrbnn.runs.run_folder import find_runs
    from lcrbnn.train.setup.options import RunOptions
    from lcrbnn.zoo.zoo_index import parse_zoo_name

    options = RunOptions(args.device, args.data_folder, workers=args.workers, worker_timeout_s=args.worker_timeout)
    for folder in args.runs:
        for path in find_runs(folder) if parse_zoo_name(folder) is None else []:
            check_evaluable(path, use_test_split=args.test)
    for folder in args.runs:
        if (name := parse_zoo_name(folder)) is not None:
            _evaluate_zoo_model(name, options)
            continue
        top1 = []
        for path in find_runs(folder):
            accuracy, num_test_results = evaluate(path, options, use_test_split=args.test)
            top1.append(accuracy.top1)
            if num_test_results > 1:
                print(f"{path}: the test set was evaluated {num_test_results - 1} times before", file=sys.stderr)
            split = f"test images (evaluation {num_test_results})" if args.test else "validation images"
            print(f"{path}: {_describe_accuracy(accuracy)} {split}{_describe_broken_images(path) if args.test else ''}")
        if len(top1) > 1:
            print(f"{folder}: mean {statistics.fmean(top1):.2f} % ± {statistics.stdev(top1):.2f} ({len(top1)} seeds)")
    return 0


def _describe_broken_images(path: Path) -> str:
    """Return how many broken images the newest test result leaves out, as text; "" if none."""
    broken_images = read_record(RunFolder(path).record_file)["test_results"][-1].get("broken_images")
    return f"; broken images skipped: {len(broken_images):,}" if broken_images else ""


def _describe_accuracy(accuracy: Accuracy) -> str:
    top5 = "" if accuracy.top5 is None else f", top-5 {accuracy.top5:.2f} %"
    return f"top-1 {accuracy.top1:.2f} %{top5}, loss {accuracy.loss:.4f}, {accuracy.images:,}"


def _evaluate_zoo_model(name: str, options: RunOptions) -> None:
    """Evaluate a network of the zoo on all test images, and print the accuracy of the index next to the result."""
    from lcrbnn.zoo.zoo_file import load_member
    from lcrbnn.zoo.zoo_index import find_member
    from lcrbnn.zoo.zoo_model import evaluate_zoo_file

    member = find_member(name)
    accuracy = evaluate_zoo_file(load_member(member), options)
    print(f"zoo:{name}: {_describe_accuracy(accuracy)} test images; the index has {member.top1:.2f} %")
