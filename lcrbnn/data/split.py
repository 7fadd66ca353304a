"""Training and test images as arrays, and the fixed split of the training images into training and validation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

# seed of the validation split; it is not the seed of a run, so all runs have the same validation images
VALIDATION_SEED = 0


class Split(NamedTuple):
    """Images (n, channels, h, w) and their labels (n,), int64."""

    images: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Split:
        """Return the images and labels of these rows."""
        return Split(self.images[rows], self.labels[rows])


class ImageArrays:
    """Training and test images of a data set as published, uint8."""

    def __init__(
        self,
        train: Split | Callable[[], Split],
        test: Split | Callable[[], Split],
        divide_train: Callable[[], tuple[Split, Split]] | None = None,
    ) -> None:
        """Keep both splits, or functions that read them at the first access.

        `divide_train` returns the training images without the validation images and the validation images, if the data
        set fixes them.
        """
        self._train, self._test, self._divide_train = train, test, divide_train

    @property
    def has_fixed_validation(self) -> bool:
        """Whether the data set fixes its validation images."""
        return self._divide_train is not None

    @cached_property
    def train(self) -> Split:
        """Return the training images, including the validation images."""
        return self._train() if callable(self._train) else self._train

    @cached_property
    def test(self) -> Split:
        """Return the test images."""
        return self._test() if callable(self._test) else self._test

    def split_validation(self, num_validation_images: int) -> tuple[Split, Split]:
        """Return the training images without the validation images, and the validation images (always the same)."""
        if self._divide_train is not None:
            return self._divide_train()
        order = np.random.default_rng(VALIDATION_SEED).permutation(len(self.train.labels))
        return self.train.take(np.sort(order[num_validation_images:])), self.train.take(
            np.sort(order[:num_validation_images])
        )
