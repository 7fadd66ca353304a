"""The embedded data set: 1,797 handwritten digits of 8 x 8 pixels (UCI; see digits.txt)."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np

from lcrbnn.errors import number

TRAIN = 1_297  # images for training; the other 500 are for validation


class Split(NamedTuple):
    """Images (n, 1, 8, 8), float32 in [0, 1], and labels (n,), int64."""

    images: np.ndarray
    labels: np.ndarray


def load_digits(seed: int = 0) -> tuple[Split, Split]:
    """Return 1,297 training and 500 validation images, shuffled once by the seed."""
    number(seed, "seed", low=0, whole=True)
    with (files("lcrbnn.data") / "digits.npz").open("rb") as file, np.load(file) as stored:
        images = stored["images"].astype(np.float32)[:, None] / 16
        labels = stored["labels"].astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, valid = order[:TRAIN], order[TRAIN:]
    return Split(images[train], labels[train]), Split(images[valid], labels[valid])
