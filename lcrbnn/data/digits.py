"""The embedded data set: 1,797 handwritten digits of 8 x 8 pixels (UCI; see digits.txt)."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from lcrbnn.data.split import Images, Split
from lcrbnn.errors import number

TRAIN = 1_297  # images for training; the other 500 are for the test
TOP = 16  # the brightest value


def read_digits(seed: int = 0) -> Images:
    """The digits as they are stored, uint8 from 0 to 16: 1,297 for training and 500 for the test, drawn by the seed."""
    number(seed, "seed", low=0, whole=True)
    with (files("lcrbnn.data") / "digits.npz").open("rb") as file, np.load(file) as stored:
        whole = Split(stored["images"].astype(np.uint8)[:, None], stored["labels"].astype(np.int64))
    order = np.random.default_rng(seed).permutation(len(whole.labels))
    return Images(whole.take(order[:TRAIN]), whole.take(order[TRAIN:]))


def load_digits(seed: int = 0) -> tuple[Split, Split]:
    """The same 1,297 and 500 images as float32 in [0, 1], ready for a loop of one's own."""
    digits = read_digits(seed)
    train, test = (Split(s.images.astype(np.float32) / TOP, s.labels) for s in (digits.train, digits.test))
    return train, test
