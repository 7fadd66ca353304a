"""Small changes of images as batched tensor code, another for each image: a warp and a table of colours each.

Turning, shearing and moving are affine maps of places; contrast, equalising, posterising and solarising are tables of
256 entries, one a channel. Every image goes through both, and one of the two changes nothing. Results are those of
Pillow but for rounding. None of them is a corruption of CIFAR-10-C: no noise, blur, fog, brightness or contrast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

LEVELS = 256
STRONGEST = 10.0  # a strength goes from 0 to this
TURN, SHEAR, MOVE, BITS = 30.0, 0.3, 1 / 3, 4  # degrees, slope, share of the side, bits: at the strongest


def warp(images: Tensor, maps: Tensor) -> Tensor:
    """(n, c, h, w), uint8, each pixel taken from the place that a 2 x 3 map, (n, 6), sends it to; black from outside.

    Places are centres of pixels, at halves. Between pixels values are bilinear; the outermost half pixel is flat.
    """
    h, w = images.shape[2:]
    y = (torch.arange(h, device=images.device) + 0.5)[:, None]
    x = torch.arange(w, device=images.device) + 0.5
    a, b, c, d, e, f = (one[:, None, None] for one in maps.unbind(1))
    column, row = a * x + b * y + c, d * x + e * y + f
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    column, row = column - 0.5, row - 0.5
    left, top = column.floor(), row.floor()
    right_share, low_share = (column - left)[:, None], (row - top)[:, None]
    flat = images.flatten(2)

    def at(i: Tensor, j: Tensor) -> Tensor:
        place = i.long().clamp(0, h - 1) * w + j.long().clamp(0, w - 1)
        return flat.gather(2, place.flatten(1)[:, None].expand_as(flat)).unflatten(2, (h, w)).float()

    upper = torch.lerp(at(top, left), at(top, left + 1), right_share)
    lower = torch.lerp(at(top + 1, left), at(top + 1, left + 1), right_share)
    value = torch.lerp(upper, lower, low_share)
    return torch.where(inside[:, None], (value + 0.5).floor(), 0.0).to(torch.uint8)


def recolor(images: Tensor, tables: Tensor) -> Tensor:
    """(n, c, h, w), uint8, each value replaced by its entry in the table of its channel, (n, c, 256)."""
    return tables.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)


def autocontrast(images: Tensor) -> Tensor:
    """The tables that stretch the values of a channel from black to white; a flat channel stays."""
    v = torch.arange(LEVELS, device=images.device)
    low, high = (f(images.flatten(2), 2)[..., None].long() for f in (torch.amin, torch.amax))
    wide = ((v - low) * (LEVELS - 1)).div((high - low).clamp_min(1), rounding_mode="floor").clamp(0, LEVELS - 1)
    return torch.where(high > low, wide, v)


def equalize(images: Tensor) -> Tensor:
    """The tables that make every value of a channel about as frequent as any other."""
    v = torch.arange(LEVELS, device=images.device)
    values = images.flatten(2).long()
    n, c, size = values.shape
    counts = torch.zeros(n, c, LEVELS, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add(2, values, torch.ones_like(values, dtype=torch.int32))
    below = counts.cumsum(2) - counts
    brightest = counts.gather(2, values.amax(2, keepdim=True))
    step = (size - brightest).div(LEVELS - 1, rounding_mode="floor")
    even = (step.div(2, rounding_mode="floor") + below).div(step.clamp_min(1), rounding_mode="floor")
    return torch.where(step > 0, even.clamp_max(LEVELS - 1), v)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """The tables that keep a few of the highest bits: 4 at the least strength, 1 near the strongest."""
    v = torch.arange(LEVELS, device=images.device)
    dropped = 8 - BITS + (strength * BITS / STRONGEST).long()
    unit = torch.ones_like(dropped) << dropped
    return (v - v % unit[:, None])[:, None].expand(-1, images.shape[1], -1)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """The tables that turn bright values around, the more of them the stronger."""
    v = torch.arange(LEVELS, device=images.device)
    first = LEVELS - (strength * LEVELS / STRONGEST).long()
    return torch.where(v < first[:, None], v, LEVELS - 1 - v)[:, None].expand(-1, images.shape[1], -1)


def _turned(s: Tensor, h: int, w: int) -> list[Tensor]:
    angle = torch.trunc(s * TURN / STRONGEST) * (math.pi / 180)
    sin, cos = angle.sin(), angle.cos()
    x, y = w / 2, h / 2  # around the middle
    return [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]


# Strength with its sign, height, width -> the six numbers of the map. Moves are by whole pixels, turns by degrees.
MAPS: dict[str, Callable[[Tensor, int, int], list]] = {
    "rotate": _turned,
    "shear-x": lambda s, h, w: [1.0, s * SHEAR / STRONGEST, 0.0, 0.0, 1.0, 0.0],
    "shear-y": lambda s, h, w: [1.0, 0.0, 0.0, s * SHEAR / STRONGEST, 1.0, 0.0],
    "translate-x": lambda s, h, w: [1.0, 0.0, torch.trunc(s * MOVE * w / STRONGEST), 0.0, 1.0, 0.0],
    "translate-y": lambda s, h, w: [1.0, 0.0, 0.0, 0.0, 1.0, torch.trunc(s * MOVE * h / STRONGEST)],
}
TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda images, s: autocontrast(images),
    "equalize": lambda images, s: equalize(images),
    "posterize": posterize,
    "solarize": solarize,
}
OPERATIONS = ("identity", *MAPS, *TABLES)


def operate(images: Tensor, which: Tensor, strength: Tensor, negative: Tensor) -> Tensor:
    """(n, c, h, w), uint8: image i through operation which[i] of OPERATIONS at its strength, whose sign maps heed.

    Nothing here waits for the device, so that it can be a part of a captured step.
    """
    n, c, h, w = images.shape
    signed = torch.where(negative, -strength, strength)
    none = torch.zeros_like(signed)
    maps = torch.stack([none + one for one in (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)], 1)
    for name, make in MAPS.items():
        made = torch.stack([none + one for one in make(signed, h, w)], 1)
        maps = torch.where((which == OPERATIONS.index(name))[:, None], made, maps)
    tables = torch.arange(LEVELS, device=images.device).expand(n, c, -1)
    for name, table in TABLES.items():
        tables = torch.where((which == OPERATIONS.index(name))[:, None, None], table(images, strength), tables)
    return recolor(warp(images, maps), tables)
