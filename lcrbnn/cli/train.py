"""`lcrbnn train`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcrbnn.data import data_folder
from lcrbnn.errors import InputError, Repeated, Stopped, number
from lcrbnn.train.spec import Spec

if TYPE_CHECKING:
    from lcrbnn.train.ranks import Ranks
    from lcrbnn.train.run import MakeProgress

MOST = 1000  # seeds of one range
SAVE_HELP = "seconds between two checkpoints"
STEP_HELP = "eager, fast (compiled and captured), or auto: fast on a GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, a folder, how to run, and every field of the spec."""
    parser.add_argument("recipe", nargs="?", help="a recipe of the package (lcrbnn recipes), or a .toml file")
    # torchrun takes --run for the beginning of an option of its own, so there is a second name.
    parser.add_argument("--run", "--folder", type=Path, required=True, metavar="FOLDER", help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder, or start it")
    parser.add_argument(
        "--seeds", metavar="LIST", help="several runs, such as 0-2 or 0,5, each in FOLDER/seed-N; side by side on a GPU"
    )
    parser.add_argument(
        "--lcr", metavar="FORM", help="with retention: default, paper or official, at the strength that goes with it"
    )
    add_options(parser)
    add_reading(parser)
    parser.add_argument("--cache", default="auto", help="hold images from files on the device: yes, no, auto (by size)")
    parser.add_argument("--save-seconds", type=float, default=30.0, help=SAVE_HELP)
    parser.add_argument("--step", default="auto", help=STEP_HELP)
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds that processes of a run, if there are several, wait"
    )
    parser.add_argument("--tensorboard", action="store_true", help="write curves for TensorBoard into the run")
    group = parser.add_argument_group("settings of the run, over those of the recipe")
    for one in fields(Spec):
        _add_field(group, one)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to compute, and where the data is."""
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-folder", type=Path, default=data_folder(), help="where the data sets are")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """How images are read from files."""
    parser.add_argument(
        "--workers", type=int, default=-1, help="processes that read images from files; -1: one a core but one"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds that such a process may say nothing before the run ends"
    )


OTHER_FLAGS = {"start": ("--start-from",)}  # torchrun takes --start for the beginning of an option of its own


def _add_field(group: Any, one: Field) -> None:
    about, default = one.metadata["about"], one.default
    choices = one.metadata.get("choices")
    if choices:
        about += "; " + ", ".join(f"{name}: {text}" for name, text in choices.items())
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    text = f"{about} (default: {shown or 'none'})".replace("%", "%%")
    how: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS, "dest": one.name}
    flag = f"--{one.name.replace('_', '-')}"
    flags = [flag, *OTHER_FLAGS.get(one.name, ())]
    if isinstance(default, bool):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **how)
    elif isinstance(default, tuple):
        kind = float if one.metadata["numbers"] else str
        group.add_argument(flag, nargs="*", type=kind, metavar="X", **how)
    else:
        group.add_argument(*flags, type=type(default), metavar=type(default).__name__.upper(), **how)


def parse_seeds(text: str) -> list[int]:
    """[0, 1, 2, 5] from "0-2,5"."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        digits = first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()
        if not digits or max(len(first), len(last)) > 18 or not 0 <= int(last) - int(first) < MOST:
            raise InputError(f"--seeds is a list such as 0-2 or 0,5; got {text[:40]!r}")
        seeds += range(int(first), int(last) + 1)
    if len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds names a seed twice; got {text!r}")
    return seeds


def execute(args: argparse.Namespace) -> int:
    """Make the spec of recipe and options, train, say what came out and where it lies; under torchrun, one of many."""
    from lcrbnn.train.ranks import joined

    number(args.timeout, "--timeout", low=1)
    with joined(args.device, args.timeout) as ranks:
        try:
            return _train(args, ranks)
        except Stopped as stopped:
            if ranks.first:
                raise
            raise Repeated(128 + stopped.number) from None


def _train(args: argparse.Namespace, ranks: Ranks) -> int:
    from lcrbnn.runs.folder import RunFolder
    from lcrbnn.train.numerics import find_device
    from lcrbnn.train.opening import check_places
    from lcrbnn.train.options import Options
    from lcrbnn.train.run import train_together

    reading = (args.workers, args.cache, args.patience)
    where = (args.device, args.data_folder, args.save_seconds, args.tensorboard, args.step)
    options = Options(*where, *reading, ranks=ranks)
    jobs = ranks.told(lambda: _jobs(args, ranks))
    ranks.told(lambda: check_places(jobs, args.resume))
    together = len(jobs) > 1 and find_device(args.device).type == "cuda"
    for part in [jobs] if together else [{path: spec} for path, spec in jobs.items()]:
        alone = len(jobs) > 1 and not together
        train_together(part, options, resume=args.resume, progress=_announced(part, args.resume, named=alone))
        for path in part:
            if ranks.first:
                _check_last(RunFolder(path))
                print(_summary(RunFolder(path)))
    return 0


def _announced(jobs: dict[Path, Spec], resume: bool, named: bool) -> MakeProgress:
    """A maker of the bar that first says what starts: it is called once nothing can be refused any more."""
    from lcrbnn.runs.folder import RunFolder
    from lcrbnn.runs.progress import Progress

    lines = [f"seed {spec.seed}: {path}" for path, spec in jobs.items() if named]
    lines += [f"no run in {path} yet: starting it" for path in jobs if resume and not RunFolder(path).exists()]

    def make(total: int, done: int) -> Progress:
        bar = Progress(total, done=done, tenths=False)
        for line in lines:
            bar.say(line)
        return bar

    return make


def _jobs(args: argparse.Namespace, ranks: Ranks) -> dict[Path, Spec]:
    """The runs that were asked for, and the spec of each."""
    from lcrbnn.runs.folder import RunFolder
    from lcrbnn.train.build import read_spec, refuse_unused
    from lcrbnn.train.dataset import settled
    from lcrbnn.train.recipes import find_recipe
    from lcrbnn.train.strengths import retaining

    given = {one.name: getattr(args, one.name) for one in fields(Spec) if hasattr(args, one.name)}
    if args.seeds is not None and "seed" in given:
        raise InputError("say --seed or --seeds, not both")
    if args.seeds is not None and ranks.launched:
        raise InputError("under torchrun all processes share one run: start each seed by itself, with --seed")
    seeds = [None] if args.seeds is None else parse_seeds(args.seeds)
    _check_kind(args.run, several=args.seeds is not None)
    siblings = [RunFolder(args.run / f"seed-{seed}") for seed in seeds if seed is not None]
    jobs: dict[Path, Spec] = {}
    for seed in seeds:
        path = args.run if seed is None else args.run / f"seed-{seed}"
        folder = RunFolder(path)
        begun = next((one for one in (folder, *siblings) if one.exists()), None)
        if args.recipe is None and args.resume and begun is not None:
            base, origin = read_spec(begun), f"the run in {begun.path}"  # a new seed begins as the others did
        else:
            if args.resume and args.recipe is None and not given:
                raise InputError(f"there is no run in {path} to go on with, and no recipe or setting to start one")
            base = Spec() if args.recipe is None else find_recipe(args.recipe).spec
            origin = f"the recipe {args.recipe}"
        if args.lcr is not None:
            base, origin = retaining(_lasting(base, given), args.lcr), f"--lcr {args.lcr}"
        _check_strength(base, given, origin)
        spec = base.but(**given, **({} if seed is None else {"seed": seed}))
        if not folder.exists():
            refuse_unused(spec, given, ranks.size)
        jobs[path] = settled(spec, args.data_folder)
    return jobs


def _check_kind(path: Path, several: bool) -> None:
    """Raise if one run is to lie in a folder of several seeds, or the other way round."""
    from lcrbnn.runs.folder import RunFolder

    one = RunFolder(path).exists()
    if several and one:
        raise InputError(f"{path} holds one run, and --seeds makes a folder for each: choose another folder")
    if not several and not one and (seeds := _seeds_in(path)):
        raise InputError(f"{path} holds {seeds}: say which with --seeds, or choose another folder")


def _check_strength(base: Spec, given: dict[str, Any], origin: str) -> None:
    """Raise if weight or share is given where its `origin`, a recipe for instance, has set the other one already."""
    for mine, other in (("share", "weight"), ("weight", "share")):
        if mine not in given and getattr(base, mine) > 0 and given.get(other, 0) > 0:
            value = getattr(base, mine)
            raise InputError(f"{origin} sets {mine} {value:g}: say --{mine}, or --{mine} 0 and --{other}")


def _lasting(base: Spec, given: dict[str, Any]) -> Spec:
    """With the number of epochs that was asked for: a strength may depend on it."""
    return base.but(epochs=given["epochs"]) if "epochs" in given else base


def _seeds_in(path: Path) -> str:
    """The first runs of seeds in a folder, as a sentence lists them; empty if there are none."""
    from lcrbnn.runs.folder import RunFolder

    seeds = sorted(p.name for p in path.glob("seed-*") if RunFolder(p).exists()) if path.is_dir() else []
    return ", ".join(seeds[:4]) + (" ..." if len(seeds) > 4 else "")


def _check_last(folder: Any) -> None:
    """Say so if the network of a finished run cannot be read any more, and what brings it back."""
    from lcrbnn.train.build import load_network

    try:
        load_network(folder)
    except InputError as error:
        print(
            f"{folder.path}: the run is finished, but {error}; without its record.json, --resume makes its end again",
            file=sys.stderr,
        )


def _summary(folder: Any) -> str:
    last = folder.last_line()
    valid = "" if last["valid"] is None else f", {last['valid']:.2f} % of the validation images"
    share = ""
    if last["share"] is not None:
        little = " (under 1 %: as good as none)" if last["share"] < 0.01 else ""
        share = f"; retention's share of the gradient is {last['share']:.2g}{little}"
    return f"{folder.path}: epoch {last['epoch']}, {last['train']:.2f} % of the training images{valid}{share}"
