"""Starting, resuming and reading a run: everything is checked before anything is written."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lcrbnn import __version__
from lcrbnn.data import data_folder
from lcrbnn.errors import InputError, choose, number
from lcrbnn.models import Network
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import note_reading, write_record
from lcrbnn.train import state
from lcrbnn.train.build import (
    RUNS,
    Parts,
    build,
    check_images,
    finding_images,
    load_finished,
    load_network,
    read_spec,
    run_named,
)
from lcrbnn.train.captured import Answers
from lcrbnn.train.dataset import check_classes, settled
from lcrbnn.train.evaluate import Accuracy, accuracy
from lcrbnn.train.events import EventFile
from lcrbnn.train.figures import figures
from lcrbnn.train.loop import Loop
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.pool import PATIENCE
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.sources import Faults, find_broken, open_splits, open_test
from lcrbnn.train.sources import Reading as Files
from lcrbnn.train.spec import Spec
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep
from lcrbnn.train.together import run_together


@dataclass(frozen=True)
class Options:
    """How a run is carried out: nothing here decides its outcome."""

    device: str = "auto"
    data_folder: Path = field(default_factory=data_folder)
    save_seconds: float = 30.0  # between two checkpoints; 0 saves after each step
    tensorboard: bool = False
    step: str = "auto"  # STEPS
    workers: int = -1  # processes that read images from files; -1: one a core but one
    cache: str = "auto"  # whether such images are held on the device: sources.CACHES
    patience: float = PATIENCE  # seconds that such a process may say nothing
    ranks: Ranks = ALONE  # the processes that share the run
    runs: Path = RUNS  # of studies, where a spec names one of them
    ahead: int = 0  # processes that compile the steps of a study's later runs meanwhile

    @property
    def fast(self) -> bool:
        """Whether steps are compiled."""
        return choose(STEPS, self.step, "kind of step")(find_device(self.device))

    @property
    def files(self) -> Files:
        """How images are read from files."""
        return Files(self.data_folder, self.workers, self.cache, self.patience)


SHARED = ("data", "side", "classes", "skip_broken", "images", "precision", "deterministic")  # by runs side by side
MakeProgress = Callable[[int, int], Progress]

STEPS: dict[str, Callable[[torch.device], bool]] = {
    "auto": lambda device: device.type == "cuda",
    "eager": lambda device: False,
    "fast": lambda device: True,
}


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
        notices = [notice for loop in loops for notice in _open(loop, options)]
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


def check_places(jobs: Mapping[Path, Spec], resume: bool) -> None:
    """Raise unless each run can start, or go on, in its folder."""
    for path, spec in jobs.items():
        _check_place(RunFolder(path), spec, resume)


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
        loop.images = found.digest
        for what, name in (("the teacher", spec.teacher), ("the run to start from", spec.start)):
            if name and loop.classes:
                check_classes(run_named(name, options.runs), loop.classes, what)
            if name and spec.images != "all":
                check_images(run_named(name, options.runs), found.digest, what)
        loops.append(loop)
    return loops


def _open(loop: Loop, options: Options) -> list[str]:
    """Start or reopen the folder of a run, whose lock is held; what must be said about it."""
    mark = [__version__, len(loop.train), state.digest({"labels": state.array(loop.train.labels)}), loop.images]
    loop.ranks.check_same(str(mark), "the version of lcrbnn or the training images")
    loop.ranks.told(lambda: _begin(loop))
    notices = _restore(loop)
    notices += [f"{len(loop.broken):,} broken images are left out: {loop.folder.broken}"] if loop.broken else []
    if options.tensorboard and loop.ranks.first:
        loop.watchers.append(EventFile(loop.folder.path / "tensorboard", loop.folder.read_log()))
    return notices


def _begin(loop: Loop) -> None:
    with _writing(loop):
        if loop.folder.untouched():
            loop.folder.forget()
    if not loop.folder.exists():
        loop.folder.create(loop.spec.stored())
    with _writing(loop):
        loop.folder.tidy()
        if loop.spec.skip_broken:
            loop.folder.write_broken(loop.broken)
        if loop.classes:
            _name_classes(loop)


def _name_classes(loop: Loop) -> None:
    """Keep the names of a tree's classes; a run that has others does not go on."""
    check_classes(loop.folder, loop.classes, "the run")
    if not loop.folder.read_classes():
        loop.folder.write_classes(loop.classes)


@contextmanager
def _writing(loop: Loop) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"the run in {loop.folder.path} cannot be written: {error.strerror or error}") from None


def _check_place(folder: RunFolder, spec: Spec, resume: bool) -> None:
    if not folder.exists():
        folder.check_free()
        return
    if folder.untouched():  # nothing is lost if it starts anew, as it was or otherwise
        return
    if not resume:
        raise InputError(
            f"there is a run in {folder.path} already: --resume goes on with it, another folder starts anew"
        )
    differs = read_spec(folder).difference(spec)
    if differs is not None:
        name, stored, wanted = differs
        raise InputError(
            f"the run in {folder.path} has {name} {stored} and now it is {wanted}: "
            "a run goes on as it began, or starts in another folder"
        )
    if folder.record.exists():
        folder.check_finished()


def _restore(loop: Loop) -> list[str]:
    """Go on where the newest good checkpoint is; the log is cut to what that one counts on."""
    path, notices, checkpoint = loop.reopen()
    notices += loop.ranks.told(lambda: _cut(loop, path))
    if checkpoint is None:
        return notices
    if notices:
        notices.append(f"going on from the one before it, {path}")
    made = checkpoint.facts["made"]
    if made != loop.made:
        notices.append(f"it was made with {made} and goes on with {loop.made}: the last bits will differ")
    if loop.place.epoch < loop.spec.epochs:
        notices.append(f"going on from epoch {loop.place.epoch + 1}, step {loop.place.step} of {loop.steps}")
    return notices


def _cut(loop: Loop, path: Path | None) -> list[str]:
    folder = loop.folder
    with _writing(loop):
        if path is None:
            seen = len(folder.read_log())
            folder.cut_log(0)
            return [f"no checkpoint was saved yet in {folder.path}: its {seen} epochs are made again"] if seen else []
        folder.cut_log(loop.place.epoch)
        folder.set_aside(path)
        return []


def runs_in(path: Path) -> list[Path]:
    """The runs in a folder: itself, or its seed-N folders in the order of N."""
    if RunFolder(path).exists():
        return [path]
    seeds = [p for p in path.glob("seed-*") if re.fullmatch(r"seed-\d+", p.name) and RunFolder(p).exists()]
    if not seeds:
        raise InputError(f"there is no run in {path}: neither spec.json nor seed-N folders that have one")
    return sorted(seeds, key=lambda p: int(p.name.removeprefix("seed-")))


class Reading(NamedTuple):
    """What a network got right, and how many readings of the test split its record now holds (0 if it was not read)."""

    accuracy: Accuracy
    readings: int


def check_readable(path: Path, *, final: bool) -> None:
    """Raise what `evaluate` would find wrong with a run before it reads an image."""
    _readable(RunFolder(path), final)


def _readable(folder: RunFolder, final: bool) -> tuple[Spec, Network, str]:
    return load_finished(folder) if final else load_network(folder)


def evaluate(path: Path, options: Options | None = None, *, final: bool = False) -> Reading:
    """Read a run's network on its validation split; with `final` on the test split, which is noted in the record."""
    options = options or Options()
    folder = RunFolder(path)
    device = find_device(options.device)
    spec, model, digest = _readable(folder, final)
    names = folder.read_classes()
    with ExitStack() as held:
        if final:
            held.enter_context(folder.locked())
            with finding_images(spec):
                shown, broken = open_test(spec, options.files, device, held, names)
        else:
            streamed = replace(options.files, cache="no")
            with finding_images(spec):
                found, *_ = open_splits([spec], streamed, device, held, folder.read_broken(), names=names)
            check_images(folder, found.digest, "the run")
            if found.valid is None:
                raise InputError(
                    f"the run in {path} learned from all {len(found.train):,} training images, so none is left for "
                    "validation; --final reads the test split"
                )
            shown, broken = found.valid, found.broken
        held.enter_context(numerics(spec))
        read = accuracy(Answers(model.to(device), spec), shown)
        if not final:
            return Reading(read, 0)
        noted = {"split": "test", **read._asdict(), "checkpoint_sha256": digest, "device": device.type}
        if broken:
            noted["broken"] = broken
        return Reading(read, note_reading(folder.record, noted))
