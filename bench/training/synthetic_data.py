"""Noise images as a data set, and a teacher that is trained on them. Step times are the same as on real images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lcrbnn.data.datasets import DATASETS, DataSet
from lcrbnn.data.digits import MAX_PIXEL_VALUE, read_digits
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train

NUM_TEST_IMAGES = 8  # number of noise images in the test split; the teacher is trained on equally many images


@dataclass(frozen=True)
class SyntheticSize:
    """Image size and number of classes of a synthetic data set."""

    image_size: int
    num_classes: int
    num_images: int  # number of training images in the synthetic data set


SYNTHETIC_SIZES: dict[str, SyntheticSize] = {
    "synthetic-8": SyntheticSize(8, 10, 1_280),
    "synthetic-32": SyntheticSize(32, 10, 50_000),
    "synthetic-224": SyntheticSize(224, 1_000, 6_400),
}


@contextmanager
def register_dataset(name: str, train: Split) -> Iterator[DataSet]:
    """Inside this context, there is a data set with this name and these training images."""
    size, template, replaced = SYNTHETIC_SIZES[name], DATASETS["cifar10"], DATASETS.get(name)
    images = ImageArrays(train, make_noise_split(name, NUM_TEST_IMAGES))
    DATASETS[name] = replace(
        template, name=name, num_classes=size.num_classes, image_size=size.image_size, load=lambda folder: images
    )
    try:
        yield DATASETS[name]
    finally:
        del DATASETS[name]
        if replaced is not None:
            DATASETS[name] = replaced


def make_noise_split(name: str, num_images: int | None = None) -> Split:
    """Return noise images for a synthetic data set. By default, their number is that of its training split."""
    size, rng = SYNTHETIC_SIZES[name], np.random.default_rng(0)
    shape = (size.num_images if num_images is None else num_images, 3, size.image_size, size.image_size)
    images = np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(shape)
    return Split(images.copy(), rng.integers(0, size.num_classes, shape[0]))


def make_enlarged_digits(name: str, num_images: int) -> Split:
    """Return enlarged digits, which are real images, so that the gradients are not only noise."""
    train, factor = read_digits().train, SYNTHETIC_SIZES[name].image_size // 8
    images = (train.images[:num_images].astype(np.uint16) * 255 // MAX_PIXEL_VALUE).astype(np.uint8)
    return Split(
        np.ascontiguousarray(images.repeat(3, 1).repeat(factor, 2).repeat(factor, 3)), train.labels[:num_images]
    )


def train_teacher_on_noise(spec: TrainSpec, folder: Path) -> Path:
    """Train the spec's network in full precision on a few noise images. Return the folder of the run."""
    real_spec = TrainSpec(
        dataset=spec.dataset,
        train_split="train+valid",
        model=spec.model,
        method="real",
        epochs=1,
        batch_size=NUM_TEST_IMAGES,
    )
    with register_dataset(spec.dataset, make_noise_split(spec.dataset, NUM_TEST_IMAGES)):
        if not RunFolder(folder).record_file.exists():
            train(real_spec, folder, RunOptions(device="cpu", step_mode="eager"))
    return folder
