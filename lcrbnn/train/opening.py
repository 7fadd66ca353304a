"""The folder of a run: whether a run can start or go on there, and how it is begun or opened again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lcrbnn import __version__
from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_folder
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import state
from lcrbnn.train.build import read_spec
from lcrbnn.train.dataset import check_classes
from lcrbnn.train.events import EventFile
from lcrbnn.train.loop import Loop
from lcrbnn.train.spec import Spec


def check_places(jobs: Mapping[Path, Spec], resume: bool) -> None:
    """Raise unless each run can start, or go on, in its folder."""
    for path, spec in jobs.items():
        _check_place(RunFolder(path), spec, resume)


def _check_place(folder: RunFolder, spec: Spec, resume: bool) -> None:
    check_output_folder(folder.path, "a run")
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


def open_run(loop: Loop, *, tensorboard: bool) -> list[str]:
    """Start or reopen the folder of a run, whose lock is held; what must be said about it."""
    mark = [__version__, len(loop.train), state.digest({"labels": state.array(loop.train.labels)}), loop.images]
    loop.ranks.check_same(str(mark), "the version of lcrbnn or the training images")
    loop.ranks.told(lambda: _begin(loop))
    notices = _restore(loop)
    notices += [f"{len(loop.broken):,} broken images are left out: {loop.folder.broken}"] if loop.broken else []
    if tensorboard and loop.ranks.first:
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
