"""Spatter: drops of water that shine at their rims, or mud."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.pixels import correlate, nearest, over, padded, smooth, unit
from lcrbnn.corrupt.source import Source

Spatter = tuple[float, float, float, float, float, int]  # mean, deviation, smoothing, threshold, amount, mud or water
WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
LEAST_MUD = 0.8
FAR = 20  # pixels from an edge, beyond which all is alike
WEAK, STRONG = 50, 150  # thresholds of the edges
RELIEF = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
BOX = np.ones((3, 3))
# A step straight, across, or like a knight's, in 1/65536 of a pixel.
STRAIGHT, ACROSS, KNIGHT = 65536, 91750, 143976
STEPS = [
    (i, j, {1: STRAIGHT, 2: ACROSS, 5: KNIGHT}[i * i + j * j])
    for i in range(-2, 3)
    for j in range(-2, 3)
    if i * i + j * j in (1, 2, 5)
]


def draw_liquid(source: Source, images: Tensor, constant: Spatter) -> tuple[Tensor]:
    """(n, h, w), normal."""
    mean, deviation = constant[:2]
    return (source.normal(*images.shape[-2:]) * deviation + mean,)


def spatter(images: Tensor, constant: Spatter, liquid: Tensor) -> Tensor:
    """Where smoothed noise passes a threshold there is liquid; an image without any stays as it is.

    At 224 pixels, water equals that of the published code only if OpenCV runs there without Intel IPP
    (`cv2.ipp.setUseIPP(False)`). The distances of IPP differ by up to 8e-5, and values then by up to 11 levels.
    """
    _, _, sigma, threshold, amount, mud = constant
    liquid = smooth(liquid, sigma)
    liquid = liquid.where(liquid >= threshold, 0.0)
    x = unit(images, torch.float32)
    if mud:
        cover = smooth((liquid > threshold).float(), amount)
        cover = cover.where(cover >= LEAST_MUD, 0.0)[:, None]
        x = x * (1 - cover) + _color(MUD, x) * cover
    else:
        x = x + _shine(liquid, amount)[:, None] * _color(WATER, x)
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def _color(color: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(color, device=like.device).view(1, 3, 1, 1)


def _shine(liquid: Tensor, amount: float) -> Tensor:
    """How much water colours each pixel: float32 (n, h, w)."""
    level = (liquid * 255).to(torch.uint8)
    far = distance(edges(level)).clamp(max=FAR)
    far = torch.floor((correlate(far, BOX) * (1 / 9)).float())
    rim = correlate(equalized(far), RELIEF).clamp(0, 255)
    rim = torch.round(over(correlate(rim, BOX), 9)).float()
    shine = level.float() * rim
    most = shine.amax((1, 2), keepdim=True)
    return shine / most.where(most > 0, 1.0) * amount


def edges(level: Tensor) -> Tensor:
    """Canny's edges of uint8 (n, h, w), as OpenCV finds them with thresholds WEAK and STRONG: bool."""
    h, w = level.shape[-2:]
    wide = padded(level.int(), 1, nearest)

    def moved(x: Tensor, i: int, j: int) -> Tensor:
        return x[..., 1 + i : 1 + i + h, 1 + j : 1 + j + w]

    def slope(part: Callable[[int, int], Tensor]) -> Tensor:
        return (part(-1, 1) - part(-1, -1)) + 2 * (part(0, 1) - part(0, -1)) + (part(1, 1) - part(1, -1))

    right, down = slope(lambda i, j: moved(wide, i, j)), slope(lambda i, j: moved(wide, j, i))
    size = right.abs() + down.abs()
    around = torch.nn.functional.pad(size, (1, 1, 1, 1))
    flat = right.abs() * 13573  # the tangent of 22.5 degrees, in 1/32768
    steep = down.abs() << 15
    level_line, upright = steep < flat, steep > flat + (right.abs() << 16)
    same = (right ^ down) >= 0

    def ridge(i: int, j: int, ties: bool) -> Tensor:
        after = moved(around, i, j)
        return (size > moved(around, -i, -j)) & ((size >= after) if ties else (size > after))

    slanted = torch.where(same, ridge(1, 1, False), ridge(1, -1, False))
    best = torch.where(level_line, ridge(0, 1, True), torch.where(upright, ridge(1, 0, True), slanted))
    possible = best & (size > WEAK)
    found = possible & (size > STRONG)
    while True:  # what touches an edge, and may be one, is one
        grown = torch.nn.functional.max_pool2d(found[:, None].float(), 3, 1, 1)[:, 0].bool() & possible
        if torch.equal(grown, found):
            return found
        found = grown


def distance(edge: Tensor) -> Tensor:
    """From each pixel to the next edge, in steps STRAIGHT, ACROSS and KNIGHT: float32 (n, h, w); FAR at most."""
    h, w = edge.shape[-2:]
    most = (FAR + 1) * STRAIGHT
    far = torch.where(edge, 0, most).int()
    while True:
        wide = torch.nn.functional.pad(far, (2, 2, 2, 2), value=most)
        nearer = far
        for i, j, cost in STEPS:
            nearer = torch.minimum(nearer, wide[:, 2 + i : 2 + i + h, 2 + j : 2 + j + w] + cost)
        if torch.equal(nearer, far):
            return far.float() / STRAIGHT
        far = nearer


def equalized(far: Tensor) -> Tensor:
    """Whole numbers 0..FAR (n, h, w) -> 0..255, such that all levels are about as frequent (OpenCV's rule)."""
    total = far[0].numel()
    counts = torch.stack([(far == v).sum((1, 2)) for v in range(FAR + 1)], 1)  # (n, FAR + 1)
    seen = torch.stack([counts[:, : v + 1].sum(1) for v in range(FAR + 1)], 1)
    first = (counts > 0).int().argmax(1, keepdim=True)
    rest = total - counts.gather(1, first)
    scale = torch.full_like(rest, 255, dtype=torch.float32) / rest.clamp(min=1)
    table = torch.round((seen - counts.gather(1, first)).float() * scale).clamp(0, 255)
    table = torch.where(rest == 0, torch.arange(FAR + 1, device=far.device), table)
    return table.gather(1, far.long().flatten(1)).view_as(far)
