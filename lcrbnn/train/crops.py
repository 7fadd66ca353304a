"""One image file as a square of uint8 pixels: what a reading process does for each image.

Torch resizes bytes several times as fast as Pillow, to within one level; it is loaded when the first image needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lcrbnn.data.decode import open_picture, pixels, reduced
from lcrbnn.data.geometry import centre, draws, is_long, middle, random_crop, resized
from lcrbnn.data.pixels import part_square


def evaluation_square(content: bytes, side: int, margin: float) -> np.ndarray:
    """(side, side, 3): the whole image resized, then its middle."""
    picture = open_picture(content)
    width, height = picture.size
    wide, high = resized(width, height, side, margin)
    times = reduced(picture, min(width // wide, height // high))
    if times > 1 or is_long(width, height):
        return _reduced_part(picture, middle(width, height, side, margin), times, side)
    left, top = centre(wide, high, side)
    whole = _resize(np.asarray(pixels(picture)), wide, high)
    return whole[top : top + side, left : left + side]


def random_square(content: bytes, side: int, key: int, place: int) -> np.ndarray:
    """(side, side, 3): a random part of the image, perhaps mirrored, by its place in an epoch."""
    picture = open_picture(content)
    box, mirrored = random_crop(picture.width, picture.height, draws(key, place))
    times = reduced(picture, min(box.width, box.height) // side)
    if times > 1:
        square = _reduced_part(picture, box, times, side)
    else:
        shown = np.asarray(pixels(picture))
        square = _resize(shown[box.top : box.top + box.height, box.left : box.left + box.width], side, side)
    return _mirror(square) if mirrored else square


def _mirror(square: np.ndarray) -> np.ndarray:
    """Left for right, by torch: NumPy takes twenty times as long over three bytes a pixel."""
    import torch

    return torch.from_numpy(square if square.flags.writeable else square.copy()).flip(1).numpy()


def _reduced_part(picture: Any, part: tuple[float, float, float, float], times: int, side: int) -> np.ndarray:
    """A part (left, top, width, height) of a picture that is decoded so many times smaller, if it is a JPEG.

    By Pillow, which takes fractions of a pixel; decoding takes most of the time here.
    """
    left, top, width, height = (number / times for number in part)
    return part_square(pixels(picture), (left, top, width, height), side)


def _resize(shown: np.ndarray, wide: int, high: int) -> np.ndarray:
    """Bilinear, every pixel of the source counted where it shrinks, as Pillow's and torchvision's."""
    if shown.shape[:2] == (high, wide):
        return shown
    import torch
    import torch.nn.functional as F

    source = torch.from_numpy(np.array(shown))[None].permute(0, 3, 1, 2)  # a copy: Pillow's bytes are read-only
    made = F.interpolate(source, (high, wide), mode="bilinear", antialias=True, align_corners=False)
    return made[0].permute(1, 2, 0).numpy()
