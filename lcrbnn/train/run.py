"""Starting and resuming runs: everything is checked before anything is written."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError, choose, number
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import write_record
from lcrbnn.train.build import Parts, build, check_images, run_named
from lcrbnn.train.dataset import check_classes, settled
from lcrbnn.train.figures import figures
from lcrbnn.train.loop import Loop
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.opening import check_places, open_run
from lcrbnn.train.options import STEPS, Options
from lcrbnn.train.sources import Faults, find_broken, open_splits
from lcrbnn.train.spec import Spec
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep
from lcrbnn.train.together import run_together

SHARED = ("data", "side", "classes", "skip_broken", "images", "precision", "deterministic")  # by runs side by side
MakeProgress = Callable[[int, int], Progress]


def train(
    spec: Spec,
    path: Path,
    options: Options | None = None,
    *,
    resume: bool = False,
    progress: MakeProgress | None = None,
) -> Path:
    """Train what the spec says into a folder, and return it. With `resume`, an interrupted run there goes on.

    A finished run is left as it is. Refused settings, data or folders raise before anything is written.
    `progress` makes the bar from the number of steps and how many of them are done.
    """
    train_together({path: spec}, options, resume=resume, progress=progress)
    return path


def train_together(
    jobs: Mapping[Path, Spec],
    options: Options | None = None,
    *,
    resume: bool = False,
    progress: MakeProgress | None = None,
    finished: Callable[[Path], None] = lambda path: None,
    named: Path | None = None,
) -> None:
    """Train several runs side by side: on a GPU, where one small network leaves most of the device idle.

    They share data, precision and determinism; `finished` hears of each the moment its record is there; lines about a
    run name it if there are several, and always, by its place in that folder, if `named`; otherwise as `train`.
    """
    options = options or Options()
    ranks = options.ranks
    number(options.save_seconds, "save_seconds", low=0)
    choose(STEPS, options.step, "kind of step")
    jobs = {path: settled(spec, options.data_folder) for path, spec in jobs.items()}
    todo = ranks.told(lambda: _todo(jobs, resume))
    if not todo:
        return
    if ranks.launched and len(todo) > 1:
        raise InputError("processes that share a run train one at a time: start each seed by itself")
    shared = next(iter(todo.values()))
    for spec in todo.values():
        for name in SHARED:
            if getattr(spec, name) != getattr(shared, name):
                raise InputError(
                    f"runs side by side share {name}; got {getattr(shared, name)} and {getattr(spec, name)}"
                )
    folders = {RunFolder(path): spec for path, spec in todo.items()}
    with ExitStack() as held:
        labels = {folder: _label(folder.path, named, len(folders) > 1).strip() for folder in folders}
        built = ranks.everywhere(lambda: _built(folders, options, labels))
        broken = _broken(folders, shared, options)
        loops = ranks.everywhere(lambda: _loops(folders, built, options, held, broken))
        loops = _held(loops, held, jobs, resume)
        held.enter_context(numerics(shared))
        notices = [notice for loop in loops for notice in open_run(loop, tensorboard=options.tensorboard)]
        make = progress or (lambda total, done: Progress(total, done=done, tenths=False))
        steps = sum(loop.spec.epochs * loop.steps for loop in loops), sum(loop.done for loop in loops)
        bar = make(*steps) if ranks.first else Progress(steps[0], io.StringIO(), done=steps[1], tenths=False)
        for loop in loops:
            loop.progress = bar
            loop.label = _label(loop.folder.path, named, len(loops) > 1)
        for notice in notices:
            bar.say(notice)

        def end(loop: Loop) -> None:
            if ranks.first:
                write_record(loop.folder.record, "train", loop.spec.stored(), figures(loop))
            finished(loop.folder.path)

        run_together(loops, end)


def _label(path: Path, named: Path | None, several: bool) -> str:
    if named is not None:
        return f"{path.relative_to(named)}  "
    return f"{path.parent.name}/{path.name}  " if several else ""


def _todo(jobs: Mapping[Path, Spec], resume: bool) -> dict[Path, Spec]:
    """The runs that have no record yet; all can start, or go on."""
    check_places(jobs, resume)
    return {path: spec for path, spec in jobs.items() if not RunFolder(path).record.exists()}


def _held(loops: list[Loop], held: ExitStack, jobs: Mapping[Path, Spec], resume: bool) -> list[Loop]:
    """Lock the folders and look at them again, for nobody else can change them now: the runs that are still to make."""

    def lock() -> list[bool]:
        for loop in loops:
            held.enter_context(loop.folder.locked())
        check_places(jobs, resume)
        return [not loop.folder.record.exists() for loop in loops]

    wanted = loops[0].ranks.told(lock)
    return [loop for loop, want in zip(loops, wanted, strict=True) if want]


def _known(folders: Iterable[RunFolder]) -> Faults | None:
    """The images that a run left out when it began; None if none has begun."""
    began = (folder for folder in folders if not folder.untouched())
    return next((found for folder in began if (found := folder.read_broken()) is not None), None)


def _broken(folders: Iterable[RunFolder], spec: Spec, options: Options) -> Faults:
    """The images that all processes leave out. Each of them reads its part of the images to find out."""
    ranks = options.ranks
    if not spec.skip_broken:
        return {}
    known = ranks.told(lambda: _known(folders))
    if known is not None:
        return known
    device, share = find_device(options.device), (ranks.rank, ranks.size)
    found = ranks.everywhere(lambda: find_broken(spec, options.files, device, share))
    return {name: why for part in ranks.of_all(found) for name, why in part.items()}


def _built(todo: Mapping[RunFolder, Spec], options: Options, labels: Mapping[RunFolder, str]) -> dict[RunFolder, Parts]:
    """The parts of each run; what is wrong with one is said with its label, where runs have some."""
    device = find_device(options.device)
    fused = options.fast and device.type == "cuda"
    how: dict[str, Any] = {"fused": fused, "ranks": options.ranks, "runs": options.runs}
    built = {}
    for folder, spec in todo.items():
        try:
            built[folder] = build(spec, device, **how)
        except InputError as error:
            raise InputError(f"{labels[folder]}: {error}" if labels[folder] else str(error)) from None
    return built


def _loops(
    todo: Mapping[RunFolder, Spec],
    built: Mapping[RunFolder, Parts],
    options: Options,
    held: ExitStack,
    known: Faults,
) -> list[Loop]:
    """Everything else that the runs need, made and checked; nothing is written. `held` closes what reads images."""
    ranks = options.ranks
    device = find_device(options.device)
    splits = open_splits(list(todo.values()), options.files, device, held, known, (ranks.rank, ranks.size))
    loops = []
    for (folder, spec), found in zip(todo.items(), splits, strict=True):
        step = (FastStep if options.fast else EagerStep)(spec, built[folder], found.train, ranks)
        seconds = options.save_seconds
        loop = Loop(spec, built[folder], step, found.train, found.valid, folder, save_seconds=seconds, ranks=ranks)
        loop.broken, loop.about, loop.classes = found.broken, found.about, found.classes
        loop.images, loop.runs = found.digest, options.runs
        for what, name in (("the teacher", spec.teacher), ("the run to start from", spec.start)):
            if name and loop.classes:
                check_classes(run_named(name, options.runs), loop.classes, what)
            if name and spec.images != "all":
                check_images(run_named(name, options.runs), found.digest, what)
        loops.append(loop)
    return loops
