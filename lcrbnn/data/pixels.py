"""A whole tree of images as arrays, by Pillow alone: for what looks at few images; the trainer has a faster way."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.data.decode import open_picture, pixels
from lcrbnn.data.geometry import centre, is_long, middle, resized
from lcrbnn.data.listing import Broken, Files, Listing
from lcrbnn.data.split import Images, Split
from lcrbnn.data.tree import Tree
from lcrbnn.errors import InputError

MOST = 8 << 30  # bytes
FAR = 1 << 16  # pixels from which on Pillow, which counts in float32, loses fractions of one


def read_tree(
    find: Callable[[Path], Tree], folder: Path, *, side: int, margin: float, skip_broken: bool = False
) -> Images:
    """The images of a tree as they are evaluated, uint8 (n, 3, side, side); a broken one is refused, or left out.

    Each split is read when it is first asked for.
    """
    tree = find(folder)
    splits = (partial(_split, listing, folder, side, margin, skip_broken) for listing in (tree.train, tree.test))
    return Images(*splits)


def _split(listing: Listing, folder: Path, side: int, margin: float, skip_broken: bool) -> Split:
    size = len(listing) * 3 * side**2
    if size > MOST:
        raise InputError(
            f"{len(listing):,} images in {folder} take {size / 1e9:.0f} GB as arrays, and this command needs them all "
            "at once; lcrbnn train and eval read them piece by piece"
        )
    images = np.empty((len(listing), 3, side, side), np.uint8)
    good = np.ones(len(listing), bool)
    files = Files()
    for row in range(len(listing)):
        member = listing[row]
        try:
            images[row] = pillow_square(files.read(member), side, margin).transpose(2, 0, 1)
        except Broken as error:
            if not skip_broken:
                raise InputError(f"{member.name} is broken: {error}") from None
            good[row] = False
    files.close()
    whole = Split(images, listing.labels)
    return whole if good.all() else whole.take(np.flatnonzero(good))


def part_square(picture: Any, part: tuple[float, float, float, float], side: int) -> np.ndarray:
    """(side, side, 3): a part (left, top, width, height) resized by Pillow, which takes fractions of a pixel."""
    from PIL import Image

    left, top, width, height = part
    if max(left, top) > FAR:
        near = math.ceil(max(width, height) / side) + 2  # what a pixel of the square sees, and more
        x, y = max(0, math.floor(left) - near), max(0, math.floor(top) - near)
        right, bottom = x + math.ceil(width) + 2 * near, y + math.ceil(height) + 2 * near
        picture = picture.crop((x, y, min(right, picture.width), min(bottom, picture.height)))
        left, top = left - x, top - y
    box = (left, top, min(left + width, picture.width), min(top + height, picture.height))
    return np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR, box=box))


def pillow_square(content: bytes, side: int, margin: float) -> np.ndarray:
    """(side, side, 3): the whole image resized by Pillow, then its middle."""
    return middle_square(pixels(open_picture(content)), side, margin)


def middle_square(picture: Any, side: int, margin: float) -> np.ndarray:
    """(side, side, channels): a decoded picture resized as a whole, then its middle."""
    from PIL import Image

    if is_long(*picture.size):
        return part_square(picture, middle(picture.width, picture.height, side, margin), side)
    wide, high = resized(picture.width, picture.height, side, margin)
    if picture.size != (wide, high):
        picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = centre(wide, high, side)
    return np.asarray(picture)[top : top + side, left : left + side]
