"""DATASETS is the table of data sets that can be used for training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lcrbnn.data.cifar10 import load_cifar10, load_small_cifar10
from lcrbnn.data.digits import MAX_PIXEL_VALUE, read_digits
from lcrbnn.data.image_files.class_folders import find_pictures
from lcrbnn.data.image_files.image_folder import ImageFolder, find_folder_with_classes, find_image_folder
from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.data.image_files.read_arrays import read_image_arrays
from lcrbnn.data.image_files.walk import KAGGLE_FOLDERS
from lcrbnn.data.split import ImageArrays, Split

RowNumbers = TypeVar("RowNumbers", bound=Any)  # type variable: an integer array of NumPy or torch


@dataclass(frozen=True)
class DataSet:
    """Description of a data set, with its size, the normalisation of its pixels, and its reader."""

    name: str
    summary: str
    num_classes: int  # number of classes; 0 = count the class folders of the training images
    channels: int
    image_size: int  # side length of an image in pixels
    max_pixel_value: int  # pixel values are divided by this number before they are normalised
    mean: tuple[float, ...]  # mean and standard deviation per channel, in units of max_pixel_value
    std: tuple[float, ...]
    # number of training images used for validation; at most a tenth of all images if they are read from files
    num_validation_images: int
    default_augmentation: str  # key of AUGMENTATIONS: the standard augmentation of this data set
    load: Callable[[Path], ImageArrays]
    class_names: tuple[str, ...] = ()  # names of the classes; if empty, classes are called by their numbers
    # function that indexes the image files; None if the data set is not read from image files
    find_image_folder: Callable[[Path], ImageFolder] | None = None
    resize_ratio: float = 1.0  # in evaluation: (shorter side of the resized image) / (side of the centre crop)

    def choose_sample_rows(self, rows: RowNumbers, total: int) -> RowNumbers:
        """Return which rows form a representative sample. `rows` are the row numbers 0, 1, ... of the first images.

        The files of an image folder are sorted by class, so the first images all belong to one class. The sample of an
        image folder is therefore evenly spaced over all `total` images. Other data sets are in random order, so their
        first images are used.
        """
        return rows if self.find_image_folder is None else rows * total // len(rows)

    def sample_split(self, split: Split, count: int) -> Split:
        """Return a representative sample of `count` images."""
        return split.take(self.choose_sample_rows(np.arange(count), len(split.labels)))

    @property
    def divides_class_folders(self) -> bool:
        """Whether class folders without train and val are accepted and divided."""
        return self.find_image_folder is find_pictures

    def with_options(
        self,
        image_size: int,
        num_classes: int,
        *,
        skip_broken: bool = False,
        class_names: tuple[str, ...] = (),
        split_seed: int = 0,
        picture_split: PictureSplit | None = None,
    ) -> DataSet:
        """Return the data set with another image size, other classes, or another treatment of broken images.

        With `class_names`, reading a folder with other classes raises InputError. Data sets that are not read from
        image files are returned unchanged. `split_seed` divides class folders without train and val, unless there is a
        `picture_split`, the split that a run has stored.
        """
        if self.find_image_folder is None:
            return self
        find_folder = self.find_image_folder
        if self.divides_class_folders:
            find_folder = partial(find_pictures, split_seed=split_seed, picture_split=picture_split)
        if class_names:
            find_folder = partial(find_folder_with_classes, find_folder, class_names)
        load = partial(
            read_image_arrays,
            find_folder,
            image_size=image_size,
            resize_ratio=self.resize_ratio,
            skip_broken=skip_broken,
        )
        return replace(
            self,
            image_size=image_size,
            num_classes=num_classes,
            load=load,
            find_image_folder=find_folder,
            class_names=class_names,
        )


def _make_folder_dataset(
    name: str,
    summary: str,
    find_folder: Callable[[Path], ImageFolder],
    image_size: int,
    num_classes: int,
    **options: Any,
) -> DataSet:
    """Return a data set of colour images that are read from files. The images are normalised like those of ImageNet."""
    return DataSet(
        name,
        summary,
        num_classes=num_classes,
        channels=3,
        image_size=image_size,
        max_pixel_value=255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        load=partial(
            read_image_arrays, find_folder, image_size=image_size, resize_ratio=options.get("resize_ratio", 1.0)
        ),
        find_image_folder=find_folder,
        **options,
    )


# The shorter side is resized to 256 pixels. Then the central 224 x 224 pixels are cropped.
_IMAGENET_RESIZE_RATIO = 256 / 224

_CIFAR10 = DataSet(
    "cifar10",
    "60,000 colour images of 32 x 32 pixels (40,000 train, 10,000 validation, 10,000 test)",
    num_classes=10,
    channels=3,
    image_size=32,
    max_pixel_value=255,
    # Mean and standard deviation of ImageNet, as in the published code of IR-Net, RBNN and LCR
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    num_validation_images=10_000,
    default_augmentation="crop-flip",
    load=load_cifar10,
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)

_DATASETS = [
    DataSet(
        "digits",
        "1,797 handwritten digits of 8 x 8 pixels, embedded (1,000 train, 297 validation, 500 test)",
        num_classes=10,
        channels=1,
        image_size=8,
        max_pixel_value=MAX_PIXEL_VALUE,
        mean=(0.0,),
        std=(1.0,),
        num_validation_images=297,
        default_augmentation="none",
        load=lambda folder: read_digits(),
    ),
    _CIFAR10,
    replace(
        _CIFAR10,
        name="cifar10-small",
        summary="30,000 of these at 16 x 16 pixels, for CPU studies (10,000 train, 10,000 validation, 10,000 test)",
        image_size=16,
        load=load_small_cifar10,
    ),
    _make_folder_dataset(
        "tiny-imagenet",
        "110,000 images of 64 x 64 pixels, 200 classes (90,000 train, 10,000 validation, 10,000 test)",
        lambda folder: find_image_folder(folder, "tiny-imagenet", "tiny-imagenet-200"),
        64,
        200,
        num_validation_images=10_000,
        default_augmentation="crop-flip",
    ),
    _make_folder_dataset(
        "imagenet",
        "1,331,167 images, 1,000 classes, at 224 x 224 (1,231,167 train, 50,000 validation, 50,000 test)",
        lambda folder: find_image_folder(folder, "imagenet", "/".join(KAGGLE_FOLDERS)),
        224,
        1000,
        num_validation_images=50_000,
        default_augmentation="random-resized-crop",
        resize_ratio=_IMAGENET_RESIZE_RATIO,
    ),
    _make_folder_dataset(
        "folder",
        "your own images in class folders, with or without train and val, or in zip or tar; 224 x 224, or --image-size",
        find_pictures,
        224,
        0,
        num_validation_images=10_000,
        default_augmentation="random-resized-crop",
        resize_ratio=_IMAGENET_RESIZE_RATIO,
    ),
]

DATASETS: dict[str, DataSet] = {row.name: row for row in _DATASETS}


def default_data_folder() -> Path:
    """Return the default folder for data sets: the value of $LCRBNN_DATA, or else the folder `data`."""
    return Path(os.environ.get("LCRBNN_DATA") or "data")
