"""DATASETS: every data set that the trainer knows, a row each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lcrbnn.data.cifar import load_cifar10
from lcrbnn.data.digits import TOP, read_digits
from lcrbnn.data.split import Images
from lcrbnn.errors import InputError


@dataclass(frozen=True)
class DataSet:
    """A row of DATASETS: what it is, how its pixels are normalised, and how to read it from a folder."""

    name: str
    summary: str
    classes: int
    channels: int
    image: int  # side
    top: int  # the pixel value that stands for 1
    mean: tuple[float, ...]  # a channel, in units of top
    std: tuple[float, ...]
    held_out: int  # training images set aside for validation
    augment: str  # what training images usually go through: a row of AUGMENTATIONS
    load: Callable[[Path], Images]
    names: tuple[str, ...] = ()  # of the classes; without, they are numbered


_ROWS = [
    DataSet(
        "digits",
        "1,797 handwritten digits of 8 x 8 pixels, embedded (1,000 train, 297 validation, 500 test)",
        classes=10,
        channels=1,
        image=8,
        top=TOP,
        mean=(0.0,),
        std=(1.0,),
        held_out=297,
        augment="none",
        load=lambda folder: read_digits(),
    ),
    DataSet(
        "cifar10",
        "60,000 colour images of 32 x 32 pixels (40,000 train, 10,000 validation, 10,000 test)",
        classes=10,
        channels=3,
        image=32,
        top=255,
        mean=(0.485, 0.456, 0.406),  # ImageNet's figures, as in the published codes of IR-Net, RBNN and LCR
        std=(0.229, 0.224, 0.225),
        held_out=10_000,
        augment="crop-flip",
        load=load_cifar10,
        names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
]


def _unread(folder: Path) -> Images:
    raise InputError(f"ImageNet cannot be read from {folder} yet")


_ROWS.append(
    DataSet(
        "imagenet",
        "1,281,167 photographs in 1,000 classes, 50,000 to test on",
        classes=1000,
        channels=3,
        image=224,
        top=255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        held_out=50_000,
        augment="crop-flip",
        load=_unread,
    )
)

DATASETS: dict[str, DataSet] = {row.name: row for row in _ROWS}


def data_folder() -> Path:
    """Where data sets are looked for when nothing is said: $LCRBNN_DATA, or the folder `data`."""
    return Path(os.environ.get("LCRBNN_DATA") or "data")
