"""A random part of each image, resized to the whole, as batched tensor code: RandomResizedCrop of images that are held.

The parts are those of `lcrbnn.data.geometry`; only what numbers stand for is another, so that 0 is all of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn.data.geometry import AREA, RATIO, TRIES

ZOOM_NUMBERS = 4 * TRIES


class Boxes(NamedTuple):
    """A part of each image, in whole pixels: (n,) each."""

    left: Tensor
    top: Tensor
    width: Tensor
    height: Tensor


def boxes(numbers: Tensor, side: int) -> Boxes:
    """The parts of square images that numbers in [0, 1), (n, ZOOM_NUMBERS), stand for: the first try that fits.

    In float64, so that no device rounds a side another way. Without a fitting try it is the whole image.
    """
    area, shape, across, down = numbers.double().unflatten(1, (TRIES, 4)).unbind(2)
    target = side**2 * (AREA[1] - (AREA[1] - AREA[0]) * area)
    ratio = torch.exp(math.log(RATIO[1]) * (2 * ((shape + 0.5) % 1.0) - 1))
    width, height = (target * ratio).sqrt().round(), (target / ratio).sqrt().round()
    fits = (width <= side) & (height <= side) & (width > 0) & (height > 0)
    tries = torch.arange(TRIES, device=numbers.device)
    first = torch.where(fits, tries, TRIES).amin(1)
    none, at = first == TRIES, first.clamp_max(TRIES - 1)[:, None]
    wide, high = (torch.where(none, side, one.gather(1, at)[:, 0]) for one in (width, height))
    left, top = (
        torch.minimum((drawn.gather(1, at)[:, 0] * (side - size + 1)).floor(), side - size)
        for drawn, size in ((across, wide), (down, high))
    )
    return Boxes(left, top, wide, high)


def zoom(images: Tensor, numbers: Tensor, mirrored: Tensor) -> Tensor:
    """(n, c, side, side), uint8 -> the same: a part of each image, bilinear, mirrored or not."""
    n, c, side, _ = images.shape
    box = boxes(numbers, side)
    left, right, along = _between(box.left, box.width, side)
    left, right, along = (torch.where(mirrored[:, None], one.flip(1), one) for one in (left, right, along))
    upper, lower, down = _between(box.top, box.height, side)
    which = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(c, device=images.device)[None, :, None, None]

    def row(places: Tensor) -> Tensor:
        across = places[:, None, :, None]
        first, second = (images[which, channel, across, end[:, None, None, :]].float() for end in (left, right))
        return torch.lerp(first, second, along[:, None, None, :])

    value = torch.lerp(row(upper), row(lower), down[:, None, :, None])
    return (value + 0.5).floor().to(torch.uint8)


def _between(start: Tensor, size: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `side` places in parts of a line: the pixels around it, and how far from the first it is.

    A part is never larger than the whole, so that two pixels are all that count.
    """
    last = (size - 1)[:, None]
    place = (torch.arange(side, device=size.device) + 0.5) * (size / side)[:, None] - 0.5
    place = torch.minimum(place.clamp_min(0), last)
    low = place.floor()
    high = torch.minimum(low + 1, last)
    return (start[:, None] + low).long(), (start[:, None] + high).long(), (place - low).float()
