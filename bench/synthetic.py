"""Images of noise under a data set's name, and a teacher that knows nothing: a step takes as long on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lcrbnn.data import DATASETS, DataSet, Images, Split
from lcrbnn.data.digits import TOP, read_digits
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.run import train

FEW = 8  # images of the test split, and what a teacher learns from


@dataclass(frozen=True)
class Size:
    """A row of SYNTHETIC."""

    image: int
    classes: int
    count: int  # training images


SYNTHETIC: dict[str, Size] = {
    "synthetic-8": Size(8, 10, 1_280),
    "synthetic-32": Size(32, 10, 50_000),
    "synthetic-224": Size(224, 1_000, 6_400),
}


@contextmanager
def known(name: str, train: Split) -> Iterator[DataSet]:
    """Inside, the trainer knows a data set of this name that has these training images."""
    size, usual, before = SYNTHETIC[name], DATASETS["cifar10"], DATASETS.get(name)
    images = Images(train, noise(name, FEW))
    DATASETS[name] = replace(usual, name=name, classes=size.classes, image=size.image, load=lambda folder: images)
    try:
        yield DATASETS[name]
    finally:
        del DATASETS[name]
        if before is not None:
            DATASETS[name] = before


def noise(name: str, count: int | None = None) -> Split:
    """Training images of a data set, its own number of them unless told otherwise."""
    size, draw = SYNTHETIC[name], np.random.default_rng(0)
    shape = (size.count if count is None else count, 3, size.image, size.image)
    images = np.frombuffer(draw.bytes(int(np.prod(shape))), np.uint8).reshape(shape)
    return Split(images.copy(), draw.integers(0, size.classes, shape[0]))


def digits(name: str, count: int) -> Split:
    """The embedded digits, enlarged: images with something to learn, for gradients that point somewhere."""
    train, times = read_digits().train, SYNTHETIC[name].image // 8
    images = (train.images[:count].astype(np.uint16) * 255 // TOP).astype(np.uint8)
    return Split(np.ascontiguousarray(images.repeat(3, 1).repeat(times, 2).repeat(times, 3)), train.labels[:count])


def untaught(spec: Spec, folder: Path) -> Path:
    """A finished run of the spec's network in full precision, on a few images."""
    plain = Spec(data=spec.data, images="all", model=spec.model, method="real", epochs=1, batch=FEW)
    with known(spec.data, noise(spec.data, FEW)):
        if not RunFolder(folder).record.exists():
            train(plain, folder, Options(device="cpu", step="eager"))
    return folder
