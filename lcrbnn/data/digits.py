"""The package contains this data set of 1,797 handwritten digits with 8 x 8 pixels (UCI; see digits.txt)."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import check_number

NUM_TRAIN_IMAGES = 1_297  # number of training images; the other 500 of the 1,797 images are test images
MAX_PIXEL_VALUE = 16


def read_digits(seed: int = 0) -> ImageArrays:
    """Return the digits with their stored pixel values, uint8 from 0 to 16.

    The seed selects which 1,297 images are for training and which 500 are for testing.
    """
    check_number(seed, "seed", low=0, integer=True)
    with (files("lcrbnn.data") / "digits.npz").open("rb") as file, np.load(file) as arrays:
        all_digits = Split(arrays["images"].astype(np.uint8)[:, None], arrays["labels"].astype(np.int64))
    order = np.random.default_rng(seed).permutation(len(all_digits.labels))
    return ImageArrays(all_digits.take(order[:NUM_TRAIN_IMAGES]), all_digits.take(order[NUM_TRAIN_IMAGES:]))


def load_digits(seed: int = 0) -> tuple[Split, Split]:
    """Return the 1,297 training images and the 500 test images of `read_digits` as float32 from 0 to 1."""
    digits = read_digits(seed)
    train, test = digits.train, digits.test
    return (
        Split(train.images.astype(np.float32) / MAX_PIXEL_VALUE, train.labels),
        Split(test.images.astype(np.float32) / MAX_PIXEL_VALUE, test.labels),
    )
