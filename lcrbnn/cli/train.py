"""`lcrbnn train` trains one run, or one run per seed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcrbnn.cli.run_options import (
    ArgumentContainer,
    add_cache_option,
    add_checkpoint_option,
    add_data_folder_option,
    add_device_option,
    add_step_mode_option,
    add_worker_options,
    parse_seeds,
)
from lcrbnn.errors import ErrorOnOtherRank, InputError, StopSignal, check_number
from lcrbnn.train.setup.spec import TrainSpec

if TYPE_CHECKING:
    from lcrbnn.train.distributed.ranks import Ranks
    from lcrbnn.train.train import ProgressFactory

EXAMPLES = (
    "lcrbnn train digits --lcr default --run-folder runs/digits",
    "lcrbnn train --dataset cifar10 --model resnet20-double --epochs 100 --seeds 0-2 --run-folder runs/cifar10",
    "lcrbnn train --data pictures/ --model my_net.py:make_model --image-size 64 --lcr default --run-folder runs/mine",
)
# Groups of options, in the order of --help
OPTION_GROUPS = ("run", "data", "model", "LCR", "optimizer", "precision", "distributed")
MIN_GRADIENT_RATIO = 0.01  # below this gradient ratio LCR has practically no effect
MAX_NAMED_SEEDS = 4  # maximum number of seeds that an error message lists


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the recipe, the options of the command and one option per field of TrainSpec, in groups."""
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="name of a recipe (see lcrbnn recipes), or your own .toml file"
    )
    groups = {name: parser.add_argument_group(name) for name in OPTION_GROUPS}
    # torchrun accepts abbreviations of its options, so no option here may be the beginning of an option of torchrun.
    groups["run"].add_argument(
        "--run-folder",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of the run (with --seeds: one folder seed-N per seed inside it)",
    )
    groups["run"].add_argument(
        "--resume",
        action="store_true",
        help="resume the run in the run folder, or start a new run if the folder is empty",
    )
    groups["run"].add_argument(
        "--seeds", metavar="LIST", help="train several seeds, such as 0-2 or 0,5; on a GPU they train in parallel"
    )
    add_checkpoint_option(groups["run"])
    groups["run"].add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard event files into the run folder"
    )
    groups["data"].add_argument(
        "--data",
        metavar="PATH",
        help="your own pictures: folder, zip or tar file with one folder per class, with or without train and val; "
        "short for --dataset folder --data-folder PATH; or the name of a data set, as --dataset NAME",
    )
    add_data_folder_option(groups["data"])
    add_worker_options(groups["data"])
    add_cache_option(groups["data"])
    groups["LCR"].add_argument(
        "--lcr",
        metavar="NAME",
        help="train with this LCR variant (default, paper or official), with its recommended weight λ and warm-up",
    )
    add_device_option(groups["precision"])
    add_step_mode_option(groups["precision"])
    groups["distributed"].add_argument(
        "--distributed-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds without a message from another process before a distributed run is aborted",
    )
    for setting in fields(TrainSpec):
        _add_setting(groups[setting.metadata["group"]], setting)


def _add_setting(group: ArgumentContainer, setting: Field) -> None:
    """Add the option of one field of TrainSpec. An option that is not given leaves no attribute in the namespace."""
    help_text, default = setting.metadata["about"], setting.default
    if choices := setting.metadata.get("choices"):
        help_text += "; " + "; ".join(f"{name}: {meaning}" for name, meaning in choices.items())
    shown_default = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    help_text = f"{help_text} (default: {shown_default or 'none'})".replace("%", "%%")
    option = f"--{setting.name.replace('_', '-')}"
    common: dict[str, Any] = {"help": help_text, "default": argparse.SUPPRESS, "dest": setting.name}
    metavar = setting.metadata["metavar"]
    if isinstance(default, bool):
        group.add_argument(option, action=argparse.BooleanOptionalAction, **common)
    elif isinstance(default, tuple):
        if setting.metadata["separator"]:
            common["action"] = _SplitAtCommas
        item_type = float if setting.metadata["numbers"] else str
        group.add_argument(option, nargs="*", type=item_type, metavar=metavar, **common)
    else:
        group.add_argument(option, type=type(default), metavar=metavar, **common)


class _SplitAtCommas(argparse.Action):
    """Accept a list of names, each word of which may hold several names separated by commas."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """Store the names as one flat list."""
        setattr(namespace, self.dest, [name.strip() for word in values for name in word.split(",") if name.strip()])


def execute(args: argparse.Namespace) -> int:
    """Train the runs and print a summary of each. Under torchrun this process is one of several."""
    from lcrbnn.train.distributed.ranks import join_process_group

    check_number(args.distributed_timeout, "--distributed-timeout", low=1)
    with join_process_group(args.device, args.distributed_timeout) as ranks:
        try:
            return _train(args, ranks)
        except StopSignal as signal:
            if ranks.is_first:
                raise
            raise ErrorOnOtherRank(128 + signal.signal_number) from None


def _apply_data_option(args: argparse.Namespace) -> None:
    """Set --dataset, and --data-folder for a path, from --data."""
    from lcrbnn.data.datasets import DATASETS, default_data_folder

    if args.data is None:
        return
    if hasattr(args, "dataset"):
        raise InputError("give --data or --dataset, not both")
    path = Path(args.data)
    if args.data in DATASETS and not path.exists():
        args.dataset = args.data
        return
    if args.data_folder != default_data_folder():
        raise InputError("give --data PATH or --data-folder, not both")
    if not path.exists():
        raise InputError(f"--data {args.data} does not exist, and no data set has this name (lcrbnn data lists them)")
    args.dataset, args.data_folder = "folder", path


def _train(args: argparse.Namespace, ranks: Ranks) -> int:
    from lcrbnn.device import find_device
    from lcrbnn.runs.run_folder import RunFolder
    from lcrbnn.train.setup.options import RunOptions
    from lcrbnn.train.setup.validate import validate_jobs
    from lcrbnn.train.train import train_validated

    _apply_data_option(args)
    options = RunOptions(
        device=args.device,
        data_folder=args.data_folder,
        checkpoint_interval_s=args.checkpoint_interval,
        tensorboard=args.tensorboard,
        step_mode=args.step_mode,
        workers=args.workers,
        cache_images=args.cache_images,
        worker_timeout_s=args.worker_timeout,
        ranks=ranks,
    )
    specs = ranks.run_on_rank0(lambda: validate_jobs(_build_specs(args, ranks), args.data_folder, resume=args.resume))
    in_parallel = len(specs) > 1 and find_device(args.device).type == "cuda"
    one_by_one = len(specs) > 1 and not in_parallel
    groups = [specs] if in_parallel else [{path: spec} for path, spec in specs.items()]
    printed_lines: set[str] = set()
    for group in groups:
        progress = _make_progress_factory(group, args.resume, print_seeds=one_by_one, printed_lines=printed_lines)
        train_validated(group, options, resume=args.resume, progress=progress)
        for path in group:
            if ranks.is_first:
                _warn_if_unreadable(RunFolder(path))
                print(_summarize_run(RunFolder(path)))
    return 0


def _make_progress_factory(
    specs: dict[Path, TrainSpec], resume: bool, print_seeds: bool, printed_lines: set[str]
) -> ProgressFactory:
    """Return a factory of the progress bar that first prints export problems and which runs start.

    The factory is called after all checks. Export problems in `printed_lines` are not printed again.
    """
    from lcrbnn.cli.export_notice import describe_export_problems
    from lcrbnn.runs.progress import ProgressBar
    from lcrbnn.runs.run_folder import RunFolder

    lines = [f"seed {spec.seed}: {path}" for path, spec in specs.items() if print_seeds]
    lines += [f"no run in {path} yet: starting it" for path in specs if resume and not RunFolder(path).exists()]

    def make_progress(total: int, num_done: int) -> ProgressBar:
        bar = ProgressBar(total, num_done=num_done, print_tenths=False)
        problem_lines = [line for line in describe_export_problems(specs.values()) if line not in printed_lines]
        printed_lines.update(problem_lines)
        for line in [*problem_lines, *lines]:
            bar.print_line(line)
        return bar

    return make_progress


def _build_specs(args: argparse.Namespace, ranks: Ranks) -> dict[Path, TrainSpec]:
    """Return a dictionary from the folder of each requested run to its training spec."""
    from lcrbnn.recipes.recipe import apply_lcr_default, find_recipe
    from lcrbnn.runs.run_folder import RunFolder
    from lcrbnn.train.setup.load import read_spec
    from lcrbnn.train.setup.validate import reject_unused_settings

    given_settings = {
        setting.name: getattr(args, setting.name) for setting in fields(TrainSpec) if hasattr(args, setting.name)
    }
    if args.seeds is not None and "seed" in given_settings:
        raise InputError("give --seed or --seeds, not both")
    if args.seeds is not None and ranks.is_launched:
        raise InputError("under torchrun all processes share one run: start each seed by itself, with --seed")
    seeds = [None] if args.seeds is None else parse_seeds(args.seeds)
    _check_folder_layout(args.run_folder, several_seeds=args.seeds is not None)
    seed_folders = [RunFolder(args.run_folder / f"seed-{seed}") for seed in seeds if seed is not None]
    specs: dict[Path, TrainSpec] = {}
    for seed in seeds:
        path = args.run_folder if seed is None else args.run_folder / f"seed-{seed}"
        folder = RunFolder(path)
        started_run = next((run for run in (folder, *seed_folders) if run.exists()), None)
        if args.recipe is None and args.resume and started_run is not None:
            # A new seed gets the settings of the seeds that were started before.
            base, origin = read_spec(started_run), f"the run in {started_run.path}"
        else:
            if args.resume and args.recipe is None and not given_settings:
                raise InputError(f"there is no run in {path} to resume, and no recipe or setting to start one")
            base = TrainSpec() if args.recipe is None else find_recipe(args.recipe).spec
            origin = f"the recipe {args.recipe}"
        if args.lcr is not None:
            # The recommended warm-up depends on the number of epochs.
            base = base.replace(epochs=given_settings["epochs"]) if "epochs" in given_settings else base
            base, origin = apply_lcr_default(base, args.lcr), f"--lcr {args.lcr}"
        _check_lcr_strength(base, given_settings, origin)
        spec = base.replace(**given_settings, **({} if seed is None else {"seed": seed}))
        if not folder.exists():
            reject_unused_settings(spec, given_settings, ranks.size)
        specs[path] = spec
    return specs


def _check_folder_layout(path: Path, several_seeds: bool) -> None:
    """Raise InputError if several seeds would use the folder of one run, or one run a folder of several seeds."""
    from lcrbnn.runs.run_folder import RunFolder

    is_run = RunFolder(path).exists()
    if several_seeds and is_run:
        raise InputError(f"{path} is the folder of one run, and --seeds needs a folder per seed: choose another folder")
    if not several_seeds and not is_run and (seeds := _list_seed_folders(path)):
        raise InputError(f"{path} contains {seeds}: choose some of them with --seeds, or another folder")


def _check_lcr_strength(base: TrainSpec, given_settings: dict[str, Any], origin: str) -> None:
    """Raise InputError if an option sets lcr_weight where `origin` (recipe) sets lcr_gradient_ratio, or vice versa."""
    for name, other_name in (("lcr_gradient_ratio", "lcr_weight"), ("lcr_weight", "lcr_gradient_ratio")):
        if name not in given_settings and getattr(base, name) > 0 and given_settings.get(other_name, 0) > 0:
            option, other_option = (f"--{setting.replace('_', '-')}" for setting in (name, other_name))
            raise InputError(
                f"{origin} sets {name} {getattr(base, name):g}: give {option}, or {option} 0 and {other_option}"
            )


def _list_seed_folders(path: Path) -> str:
    """Return the names of the first seed-N folders with a run as text, or "" if there are none."""
    from lcrbnn.runs.run_folder import RunFolder

    names = sorted(p.name for p in path.glob("seed-*") if RunFolder(p).exists()) if path.is_dir() else []
    return ", ".join(names[:MAX_NAMED_SEEDS]) + (" ..." if len(names) > MAX_NAMED_SEEDS else "")


def _warn_if_unreadable(folder: Any) -> None:
    """Print a warning if the network of a finished run cannot be read, and how to restore it."""
    from lcrbnn.train.setup.load import load_network

    try:
        load_network(folder)
    except InputError as error:
        print(
            f"{folder.path}: the run is finished, but {error}; without its record.json, --resume repeats its end",
            file=sys.stderr,
        )


def _summarize_run(folder: Any) -> str:
    line = folder.read_last_log_line()
    valid = "" if line["valid_top1"] is None else f", {line['valid_top1']:.2f} % of the validation images"
    gradient_ratio = ""
    if line["lcr_gradient_ratio"] is not None:
        ratio = line["lcr_gradient_ratio"]
        hint = " (under 1 %: practically no effect)" if ratio < MIN_GRADIENT_RATIO else ""
        gradient_ratio = f"; the gradient ratio of LCR is {ratio:.2g}{hint}"
    top1 = f"{line['train_top1']:.2f} % of the training images{valid}"
    return f"{folder.path}: epoch {line['epoch']}, {top1}{gradient_ratio}"
