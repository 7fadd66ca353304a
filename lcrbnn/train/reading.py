"""Reading a run: what its network gets right of the validation images, or once of the test images."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lcrbnn.errors import InputError
from lcrbnn.models import Network
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import note_reading
from lcrbnn.train.build import check_images, finding_images, load_finished, load_network
from lcrbnn.train.captured import Answers
from lcrbnn.train.evaluate import Accuracy, accuracy
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.options import Options
from lcrbnn.train.sources import open_splits, open_test
from lcrbnn.train.spec import Spec


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
