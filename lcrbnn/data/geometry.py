"""Which part of an image becomes a square of so many pixels: the standard protocol of ImageNet, as arithmetic."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

AREA = (0.08, 1.0)  # share of the image that a random crop covers
RATIO = (3 / 4, 4 / 3)  # its width over its height
TRIES = 10  # crops drawn before the middle of the image is taken
LONG = 16  # times its shorter side
DRAWS = 4 * TRIES + 1  # numbers from 0 to 1 that an image needs


class Box(NamedTuple):
    """A part of an image, in whole pixels."""

    left: int
    top: int
    width: int
    height: int


def draws(key: int, place: int) -> np.ndarray:
    """The numbers of an image, from the key of an epoch and its place in the epoch's order alone."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, place])).random(DRAWS)


def random_crop(width: int, height: int, drawn: np.ndarray) -> tuple[Box, bool]:
    """A random part of an image of this size (RandomResizedCrop), and whether it is mirrored."""
    mirrored = bool(drawn[-1] < 0.5)
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for area, shape, across, down in drawn[:-1].reshape(TRIES, 4).tolist():
        target = width * height * (AREA[0] + (AREA[1] - AREA[0]) * area)
        ratio = math.exp(low + (high - low) * shape)
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            return Box(int(across * (width - w + 1)), int(down * (height - h + 1)), w, h), mirrored
    return _middle(width, height), mirrored


def _middle(width: int, height: int) -> Box:
    """As much of the middle of a long image as the ratios allow."""
    ratio = width / height
    w, h = width, height
    if ratio < RATIO[0]:
        h = min(height, max(1, round(width / RATIO[0])))
    elif ratio > RATIO[1]:
        w = min(width, max(1, round(height * RATIO[1])))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def resized(width: int, height: int, side: int, margin: float) -> tuple[int, int]:
    """The size of the whole image for evaluation: its shorter side is `margin` times the square's (256 for 224)."""
    short = round(side * margin)
    if width <= height:
        return short, max(short, short * height // width)
    return max(short, short * width // height), short


def middle(width: int, height: int, side: int, margin: float) -> tuple[float, float, float, float]:
    """The square of evaluation in pixels of the image as it is: left, top, width, height."""
    wide, high = resized(width, height, side, margin)
    left, top = centre(wide, high, side)
    across, down = width / wide, height / high
    return left * across, top * down, side * across, side * down


def is_long(width: int, height: int) -> bool:
    """Whether an image is so long that it cannot be resized as a whole: a line of 100,000 pixels would take 20 GB."""
    return max(width, height) > LONG * min(width, height)


def centre(width: int, height: int, side: int) -> tuple[int, int]:
    """Left and top of the square in the middle of a resized image."""
    return round((width - side) / 2), round((height - side) / 2)
