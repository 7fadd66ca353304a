"""DATASETS: every data set that the trainer knows, a row each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lcrbnn.data.cifar import load_cifar10, load_small_cifar10
from lcrbnn.data.digits import TOP, read_digits
from lcrbnn.data.pixels import read_tree
from lcrbnn.data.split import Images, Split
from lcrbnn.data.tree import Tree, find_tree, tree_of
from lcrbnn.data.walk import KAGGLE

Rows = TypeVar("Rows", bound=Any)  # of NumPy or of torch


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
    held_out: int  # training images set aside for validation; of images read from files, a tenth at most
    augment: str  # what training images usually go through: a row of AUGMENTATIONS
    load: Callable[[Path], Images]
    names: tuple[str, ...] = ()  # of the classes; without, they are numbered
    tree: Callable[[Path], Tree] | None = None  # where images are read from files
    margin: float = 1.0  # there: the shorter side of a whole image in evaluation, over that of its middle

    def standing_for(self, rows: Rows, total: int) -> Rows:
        """Rows 0, 1, ... of as many images, made to stand for all: the first; of a tree, evenly spaced ones.

        A tree lies class by class, so that its first images are of one class.
        """
        return rows if self.tree is None else rows * total // len(rows)

    def some(self, split: Split, count: int) -> Split:
        """So many images that stand for a split."""
        return split.take(self.standing_for(np.arange(count), len(split.labels)))

    def sized(self, side: int, classes: int, *, skip_broken: bool = False, names: tuple[str, ...] = ()) -> DataSet:
        """The same with images of another side, or with this number of classes, or without the broken ones.

        With names of classes, a tree that has others is refused.
        """
        if self.tree is None:
            return self
        tree = partial(tree_of, self.tree, names) if names else self.tree
        load = partial(read_tree, tree, side=side, margin=self.margin, skip_broken=skip_broken)
        return replace(self, image=side, classes=classes, load=load, tree=tree, names=names)


def _tree_row(name: str, summary: str, find: Callable[[Path], Tree], side: int, classes: int, **more: Any) -> DataSet:
    """A row of images that are read from files, in colour, normalised as ImageNet's are."""
    return DataSet(
        name,
        summary,
        classes=classes,
        channels=3,
        image=side,
        top=255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        load=partial(read_tree, find, side=side, margin=more.get("margin", 1.0)),
        tree=find,
        **more,
    )


_STANDARD = 256 / 224  # of the usual protocol: the shorter side becomes 256, and the middle 224 are taken

_CIFAR10 = DataSet(
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
)

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
    _CIFAR10,
    replace(
        _CIFAR10,
        name="cifar10-small",
        summary="30,000 of them at 16 x 16 pixels, for studies on a CPU (10,000 train, 10,000 validation, 10,000 test)",
        image=16,
        load=load_small_cifar10,
    ),
    _tree_row(
        "tiny-imagenet",
        "110,000 images of 64 x 64 pixels, 200 classes (90,000 train, 10,000 validation, 10,000 test)",
        lambda folder: find_tree(folder, "tiny-imagenet", "tiny-imagenet-200"),
        64,
        200,
        held_out=10_000,
        augment="crop-flip",
    ),
    _tree_row(
        "imagenet",
        "1,331,167 images, 1,000 classes, at 224 x 224 (1,231,167 train, 50,000 validation, 50,000 test)",
        lambda folder: find_tree(folder, "imagenet", "/".join(KAGGLE)),
        224,
        1000,
        held_out=50_000,
        augment="resized-crop",
        margin=_STANDARD,
    ),
    _tree_row(
        "folder",
        "your own: train/<class>/..., val/<class>/..., as folders, zip or tar files; 224 x 224, or --side",
        find_tree,
        224,
        0,
        held_out=10_000,
        augment="resized-crop",
        margin=_STANDARD,
    ),
]

DATASETS: dict[str, DataSet] = {row.name: row for row in _ROWS}


def data_folder() -> Path:
    """Where data sets are looked for when nothing is said: $LCRBNN_DATA, or the folder `data`."""
    return Path(os.environ.get("LCRBNN_DATA") or "data")
