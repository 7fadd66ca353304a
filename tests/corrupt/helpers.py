"""Enlarged digits as a data set of 32 pixels, made-up photos of frost, and a small run."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data import DATASETS, Images, Split
from lcrbnn.data.digits import TOP, read_digits
from lcrbnn.data.frost import PHOTOS

NAME = "digits-32"
TRAIN, TEST = 190, 60  # 190: two images of each pair of corruption and severity


@lru_cache(maxsize=1)
def digits() -> Images:
    """The embedded digits, four times as large and in colour."""

    def large(split: Split, count: int) -> Split:
        gray = (split.images[:count].astype(np.uint16) * 255 // TOP).astype(np.uint8)
        return Split(np.ascontiguousarray(gray.repeat(3, 1).repeat(4, 2).repeat(4, 3)), split.labels[:count])

    stored = read_digits()
    return Images(large(stored.train, TRAIN), large(stored.test, TEST))


def know_digits(monkeypatch: pytest.MonkeyPatch, images: Images | None = None) -> None:
    """Until the test ends there is a data set of this name."""
    row = replace(DATASETS["cifar10"], name=NAME, held_out=0, load=lambda folder: images or digits())
    monkeypatch.setitem(DATASETS, NAME, row)


def put_photos(folder: Path) -> Path:
    """Pictures of noise under the names of the frost's."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i, name in enumerate(PHOTOS):
        pixels = rng.integers(0, 256, (240 + 10 * i, 260, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder
