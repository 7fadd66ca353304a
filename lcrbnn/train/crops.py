"""One image file as a square of uint8 pixels: what a reading process does for each image.

Torch resizes bytes several times as fast as Pillow, to within one level; it is loaded when the first image needs it.
"""

from __future__ import annotations

import numpy as np

from lcrbnn.data.decode import open_picture, pixels, reduced
from lcrbnn.data.geometry import Box, centre, draws, random_crop, resized


def evaluation_square(content: bytes, side: int, margin: float) -> np.ndarray:
    """(side, side, 3): the whole image resized, then its middle."""
    picture = open_picture(content)
    wide, high = resized(picture.width, picture.height, side, margin)
    reduced(picture, min(picture.width // wide, picture.height // high))
    whole = _resize(np.asarray(pixels(picture)), wide, high)
    left, top = centre(wide, high, side)
    return whole[top : top + side, left : left + side]


def random_square(content: bytes, side: int, key: int, place: int) -> np.ndarray:
    """(side, side, 3): a random part of the image, perhaps mirrored, by its place in an epoch.

    A large JPEG is decoded at a half, a quarter or an eighth of its size, as long as the part still has `side` pixels.
    """
    picture = open_picture(content)
    box, mirrored = random_crop(picture.width, picture.height, draws(key, place))
    times = reduced(picture, min(box.width, box.height) // side)
    shown = np.asarray(pixels(picture))
    left, top, width, height = box if times == 1 else _smaller(box, times, shown)
    square = _resize(shown[top : top + height, left : left + width], side, side)
    return square[:, ::-1] if mirrored else square


def _smaller(box: Box, times: int, shown: np.ndarray) -> Box:
    """The same part of the reduced image, to the nearest of its pixels."""
    left, top = round(box.left / times), round(box.top / times)
    right, bottom = round((box.left + box.width) / times), round((box.top + box.height) / times)
    return Box(left, top, min(right, shown.shape[1]) - left, min(bottom, shown.shape[0]) - top)


def _resize(shown: np.ndarray, wide: int, high: int) -> np.ndarray:
    """Bilinear, every pixel of the source counted where it shrinks, as Pillow's and torchvision's."""
    if shown.shape[:2] == (high, wide):
        return shown
    import torch
    import torch.nn.functional as F

    source = torch.from_numpy(np.array(shown))[None].permute(0, 3, 1, 2)  # a copy: Pillow's bytes are read-only
    made = F.interpolate(source, (high, wide), mode="bilinear", antialias=True, align_corners=False)
    return made[0].permute(1, 2, 0).numpy()
