"""`lcrbnn study` trains the variants of a plan with the same seeds and compares them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.run_options import (
    add_cache_option,
    add_checkpoint_option,
    add_data_folder_option,
    add_device_option,
    add_step_mode_option,
    add_worker_options,
    parse_seeds,
)
from lcrbnn.errors import check_number

if TYPE_CHECKING:
    from lcrbnn.study.plan import StudyPart
    from lcrbnn.train.setup.options import RunOptions

EXAMPLES = ("lcrbnn study plan.toml --runs-folder runs/plan --seeds 0-2", "lcrbnn study plan.toml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan, the folders and the options of its runs."""
    parser.add_argument(
        "plan", type=Path, metavar="PLAN", help="TOML file with recipe, seeds, baseline, [settings] and [variants.NAME]"
    )
    parser.add_argument(
        "--runs-folder",
        type=Path,
        metavar="FOLDER",
        help="folder in which unfinished runs are trained (without this option, only the table of existing records is "
        "printed)",
    )
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="folder of the result records (default: results/PLAN)"
    )
    add_study_options(parser)


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for running the variants of plans."""
    run, data, precision = (parser.add_argument_group(name) for name in ("run", "data", "precision"))
    run.add_argument(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="train only every N-th variant, starting with variant I; for example, 1/4",
    )
    run.add_argument("--seeds", metavar="LIST", help="train only the runs with these seeds, such as 0-2 or 0,5")
    run.add_argument(
        "--parallel-runs", type=int, default=4, metavar="N", help="number of runs that are trained at the same time"
    )
    run.add_argument(
        "--compile-workers",
        type=int,
        default=0,
        metavar="N",
        help="number of processes that compile the training steps of later variants in advance",
    )
    add_checkpoint_option(run)
    add_data_folder_option(data)
    add_worker_options(data)
    add_cache_option(data)
    add_device_option(precision)
    add_step_mode_option(precision)


def build_run_options(args: argparse.Namespace, runs_folder: Path) -> RunOptions:
    """Return the run options of a study. Runs of other plans are looked up in runs_folder/PLAN."""
    from lcrbnn.train.setup.options import RunOptions

    check_number(args.compile_workers, "--compile-workers", low=0, integer=True)
    return RunOptions(
        device=args.device,
        data_folder=args.data_folder,
        checkpoint_interval_s=args.checkpoint_interval,
        step_mode=args.step_mode,
        workers=args.workers,
        cache_images=args.cache_images,
        worker_timeout_s=args.worker_timeout,
        runs_folder=runs_folder,
        compile_workers=args.compile_workers,
    )


def parse_part(args: argparse.Namespace) -> StudyPart:
    """Return the part of a study that --shard and --seeds select."""
    from lcrbnn.study.plan import StudyPart

    return StudyPart.parse(args.shard, None if args.seeds is None else parse_seeds(args.seeds))


def execute(args: argparse.Namespace) -> int:
    """Run the plan if a folder is given, and print the table of all existing records."""
    from lcrbnn.study.plan import read_plan, render_study_table, run_plan

    check_number(args.parallel_runs, "--parallel-runs", low=1, integer=True)
    part = parse_part(args)
    plan = read_plan(args.plan)
    records = Path("results") / plan.name if args.records is None else args.records
    if args.runs_folder is not None:
        options = build_run_options(args, args.runs_folder.parent)
        run_plan(plan, args.runs_folder, records, options, args.parallel_runs, part)
    print(render_study_table(plan, records))
    print(f"records: {records}; detectable: the smallest true difference that these pairs detect with 80 % power")
    return 0
