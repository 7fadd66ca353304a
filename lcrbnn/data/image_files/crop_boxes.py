"""Crop boxes of the standard ImageNet protocol. Training has random resized crops, and evaluation has centre crops."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

CROP_AREA_RANGE = (0.08, 1.0)  # range of the ratio (area of a random crop) / (area of the image)
ASPECT_RATIO_RANGE = (3 / 4, 4 / 3)  # range of the ratio width / height of a random crop
MAX_CROP_TRIES = 10  # maximum number of random crops that are tried; after that, the centre of the image is used
LONG_ASPECT_RATIO = 16  # minimum ratio (longer side) / (shorter side) of an image that is not resized as a whole
# Number of random numbers per image: area, ratio, x and y for each try, and one for the flip
NUM_CROP_NUMBERS = 4 * MAX_CROP_TRIES + 1


class CropBox(NamedTuple):
    """A rectangle of an image, in whole pixels."""

    left: int
    top: int
    width: int
    height: int


def draw_crop_numbers(key: int, position: int) -> np.ndarray:
    """Return the random numbers of one image, which depend only on the epoch's key and the image's position."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position])).random(NUM_CROP_NUMBERS)


def random_crop_box(width: int, height: int, crop_numbers: np.ndarray) -> tuple[CropBox, bool]:
    """Return a random crop of an image of this size (RandomResizedCrop), and whether it is mirrored."""
    is_mirrored = bool(crop_numbers[-1] < 0.5)
    log_min_ratio, log_max_ratio = math.log(ASPECT_RATIO_RANGE[0]), math.log(ASPECT_RATIO_RANGE[1])
    for area, shape, across, down in crop_numbers[:-1].reshape(MAX_CROP_TRIES, 4).tolist():
        crop_area = width * height * (CROP_AREA_RANGE[0] + (CROP_AREA_RANGE[1] - CROP_AREA_RANGE[0]) * area)
        ratio = math.exp(log_min_ratio + (log_max_ratio - log_min_ratio) * shape)
        w, h = round(math.sqrt(crop_area * ratio)), round(math.sqrt(crop_area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return CropBox(int(across * (width - w + 1)), int(down * (height - h + 1)), w, h), is_mirrored
    return _fallback_crop_box(width, height), is_mirrored


def _fallback_crop_box(width: int, height: int) -> CropBox:
    """Return the largest centre crop with an allowed aspect ratio."""
    ratio = width / height
    w, h = width, height
    if ratio < ASPECT_RATIO_RANGE[0]:
        h = min(height, max(1, round(width / ASPECT_RATIO_RANGE[0])))
    elif ratio > ASPECT_RATIO_RANGE[1]:
        w = min(width, max(1, round(height * ASPECT_RATIO_RANGE[1])))
    return CropBox((width - w) // 2, (height - h) // 2, w, h)


def compute_resized_size(width: int, height: int, crop_size: int, resize_ratio: float) -> tuple[int, int]:
    """Return width and height of a resized image with the shorter side `resize_ratio * crop_size` (256 for 224)."""
    short_side = round(crop_size * resize_ratio)
    if width <= height:
        return short_side, max(short_side, short_side * height // width)
    return max(short_side, short_side * width // height), short_side


def center_crop_box(width: int, height: int, crop_size: int, resize_ratio: float) -> tuple[float, float, float, float]:
    """Return the centre crop of evaluation in pixels of the original image: left, top, width, height."""
    resized_width, resized_height = compute_resized_size(width, height, crop_size, resize_ratio)
    left, top = center_offset(resized_width, resized_height, crop_size)
    scale_x, scale_y = width / resized_width, height / resized_height
    return left * scale_x, top * scale_y, crop_size * scale_x, crop_size * scale_y


def is_too_long(width: int, height: int) -> bool:
    """Return whether an image is too long for a resize as a whole. A line of 100,000 pixels would take 20 GB."""
    return max(width, height) > LONG_ASPECT_RATIO * min(width, height)


def center_offset(width: int, height: int, crop_size: int) -> tuple[int, int]:
    """Return left and top of the centre crop of a resized image."""
    return round((width - crop_size) / 2), round((height - crop_size) / 2)
