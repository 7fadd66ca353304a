"""The data set of a spec: its row, with what the spec says of the size of images and the number of classes."""

from __future__ import annotations

from pathlib import Path

from lcrbnn.data import DATASETS, DataSet
from lcrbnn.data.tree import other_names
from lcrbnn.errors import InputError, choose
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.spec import Spec


def data_row(spec: Spec, names: tuple[str, ...] = ()) -> DataSet:
    """The row of the data set that a spec names; with names of classes, it refuses images of others."""
    row = choose(DATASETS, spec.data, "data set")
    if row.tree is None:
        for name in ("side", "classes", "skip_broken"):
            if getattr(spec, name):
                raise InputError(f"{name} is for images that are read from files; {row.name} has its own")
        return row
    if spec.classes and row.classes and spec.classes != row.classes:
        raise InputError(f"{row.name} has {row.classes} classes; got classes {spec.classes}")
    return row.sized(spec.side or row.image, spec.classes or row.classes, skip_broken=spec.skip_broken, names=names)


def run_row(folder: RunFolder, spec: Spec) -> DataSet:
    """The same for a run, with the names of classes that it keeps."""
    return data_row(spec, folder.read_classes())


def check_classes(folder: RunFolder, names: tuple[str, ...], what: str) -> None:
    """Refuse a run that learned other classes than those of these names; one that kept none is believed."""
    known = folder.read_classes()
    if known and (odd := other_names(known, names)):
        raise InputError(f"{what} in {folder.path} has other classes than the images: {odd} in one of them only")


def check_class_names(names: tuple[str, ...], folder: Path) -> None:
    """Raise if the name of a class is not valid UTF-8: no exported file could hold the name."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"the class {name!r} in {folder} has a name that is not valid UTF-8: rename it before training"
            ) from None


def settled(spec: Spec, folder: Path) -> Spec:
    """The same spec with the number of classes, where the data set has none of its own and the spec does not say it."""
    row = choose(DATASETS, spec.data, "data set")
    if row.tree is None or row.classes or spec.classes:
        return spec
    return spec.but(classes=len(row.tree(folder).classes))
