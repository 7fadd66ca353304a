"""What a data set is: images for training, others for the test, and a fixed validation split of the former."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

VALIDATION_SEED = 0  # of the validation split: the same images whatever the seed of a run


class Split(NamedTuple):
    """Images (n, channels, h, w) and their labels (n,), int64."""

    images: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Split:
        """Some of the images."""
        return Split(self.images[rows], self.labels[rows])


class Images:
    """A data set as it was published: uint8 images for training and for the test."""

    def __init__(self, train: Split | Callable[[], Split], test: Split | Callable[[], Split]) -> None:
        """Take both, or functions that read them when they are first asked for."""
        self._train, self._test = train, test

    @cached_property
    def train(self) -> Split:
        """For training."""
        return self._train() if callable(self._train) else self._train

    @cached_property
    def test(self) -> Split:
        """For the test."""
        return self._test() if callable(self._test) else self._test

    def divided(self, held_out: int) -> tuple[Split, Split]:
        """The training images without, and only, the `held_out` ones that are for validation: always the same ones."""
        order = np.random.default_rng(VALIDATION_SEED).permutation(len(self.train.labels))
        return self.train.take(np.sort(order[held_out:])), self.train.take(np.sort(order[:held_out]))
