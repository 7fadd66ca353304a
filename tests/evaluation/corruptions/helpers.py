"""Enlarged digits as a data set of 32 x 32 pixels, and random frost photos."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import MAX_PIXEL_VALUE, read_digits
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.evaluation.corruptions.frost_photos import PHOTO_SHA256

DATASET_NAME = "digits-32"
NUM_TRAIN, NUM_TEST = 190, 60  # 190 training images: two per pair of corruption and severity


@lru_cache(maxsize=1)
def load_enlarged_digits() -> ImageArrays:
    """Return the embedded digits, enlarged four times, with three channels."""

    def enlarge(split: Split, count: int) -> Split:
        pixels = (split.images[:count].astype(np.uint16) * 255 // MAX_PIXEL_VALUE).astype(np.uint8)
        return Split(np.ascontiguousarray(pixels.repeat(3, 1).repeat(4, 2).repeat(4, 3)), split.labels[:count])

    embedded = read_digits()
    return ImageArrays(enlarge(embedded.train, NUM_TRAIN), enlarge(embedded.test, NUM_TEST))


def register_enlarged_digits(monkeypatch: pytest.MonkeyPatch, images: ImageArrays | None = None) -> None:
    """Register the enlarged digits as a data set until the test ends."""
    dataset = replace(
        DATASETS["cifar10"],
        name=DATASET_NAME,
        num_validation_images=0,
        load=lambda folder: images or load_enlarged_digits(),
    )
    monkeypatch.setitem(DATASETS, DATASET_NAME, dataset)


def write_frost_photos(folder: Path) -> Path:
    """Write noise images under the names of the frost photos."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i, name in enumerate(PHOTO_SHA256):
        pixels = rng.integers(0, 256, (240 + 10 * i, 260, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder
