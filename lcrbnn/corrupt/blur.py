"""Blur: out of focus, behind glass, in motion, zooming, Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.pixels import (
    NEGLIGIBLE,
    apply_columns,
    at,
    correlate,
    levels,
    on,
    over,
    reflected,
    smooth,
    unit,
)
from lcrbnn.corrupt.source import Source


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """A Gaussian of this deviation in pixels."""
    return levels(smooth(unit(images), sigma))


# -- defocus -------------------------------------------------------------------------------------------------------


def defocus_blur(images: Tensor, constant: tuple[float, float]) -> Tensor:
    """Each point becomes a disk of some radius, its rim softened."""
    return levels(correlate(unit(images), disk(*constant)))


@lru_cache(maxsize=32)
def disk(radius: float, softness: float) -> np.ndarray:
    """A disk of sum 1 under a small Gaussian: float32 throughout, as its last bits decide where white stays white."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    line = np.arange(-reach, reach + 1)
    flat = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    flat /= flat.sum()
    half = 1 if radius <= 8 else 2
    weights = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * softness**2))
    weights = (weights / weights.sum()).astype(np.float32)
    for _ in range(2):
        wide = flat[:, reflected(np.arange(-half, len(line) + half), len(line))]
        rows = weights[half] * wide[:, half:-half]
        for far in range(1, half + 1):
            both = wide[:, half - far : len(line) + half - far] + wide[:, half + far : len(line) + half + far]
            rows = rows + weights[half + far] * both
        flat = rows.T
    soft = np.abs(flat) > NEGLIGIBLE
    used = int(np.abs(np.argwhere(soft) - reach).max())
    return np.ascontiguousarray(flat[reach - used : reach + used + 1, reach - used : reach + used + 1])


# -- glass ---------------------------------------------------------------------------------------------------------

Glass = tuple[float, int, int]  # deviation of the Gaussian, largest move, times


def draw_moves(source: Source, images: Tensor, constant: Glass) -> tuple[Tensor]:
    """(n, times, 2, h, w): columns, then rows, by which each pixel looks away."""
    _, reach, times = constant
    return (source.whole(-reach, reach, times, 2, *images.shape[-2:]),)


def glass_blur(images: Tensor, constant: Glass, moves: Tensor) -> Tensor:
    """Blurred, each pixel replaced by a near one, blurred again.

    From the last pixel to the first a pixel takes the value that the other one has by then (the published code means
    to swap them, and copies). The margin, one row and column more at the start, stays.
    """
    sigma, reach, times = constant
    n, c, side, _ = images.shape
    x = levels(smooth(unit(images), sigma))
    place = torch.arange(side * side, device=images.device).repeat(n, 1)
    for step in range(times):
        away = (moves[:, step, 1] * side + moves[:, step, 0]).reshape(n, -1)
        for wave in _waves(side, reach):
            here = on(wave, images)
            place[:, here] = place.gather(1, here + away[:, here])
    x = x.reshape(n, c, -1).gather(2, place[:, None].expand(n, c, -1)).view_as(images)
    return levels(smooth(unit(x), sigma))


@lru_cache(maxsize=8)
def _waves(side: int, reach: int) -> list[np.ndarray]:
    """The pixels in groups that can be replaced at once: none looks at one that its own group or a later one changes
    before it should.

    With a reach of 1 a pixel looks up and left only, at what is not replaced yet: one group. Otherwise the groups are
    slanted lines, so that a row is always `reach` + 1 pixels ahead of the row above it.
    """
    line = np.arange(side - reach, reach, -1)
    row, column = (part.reshape(-1) for part in np.meshgrid(line, line, indexing="ij"))
    place = row * side + column
    if reach == 1:
        return [place]
    turn = (side - row) * (reach + 1) + (side - column)
    return [place[turn == t] for t in np.unique(turn)]


# -- motion --------------------------------------------------------------------------------------------------------


def draw_angle(source: Source, images: Tensor, constant: tuple[float, float]) -> tuple[Tensor]:
    """(n,): degrees, from -45 to 45."""
    return (source.uniform() * 90 - 45,)


def motion_blur(images: Tensor, constant: tuple[float, float], angle: Tensor) -> Tensor:
    """Dragged along a line, at the constant's radius and deviation."""
    return drag(images, *constant, angle)


def drag(images: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """ImageMagick's motion blur in 16 bits: half a Gaussian along whole pixels of a line, edges going on."""
    n, _, h, w = images.shape
    weights = _half_gaussian(radius, sigma)
    x, total = images.double(), torch.zeros_like(images, dtype=torch.float64)
    right, down = (torch.cos(angle * (math.pi / 180)), torch.sin(angle * (math.pi / 180)))
    rows, columns = (torch.arange(side, device=images.device) for side in (h, w))
    for i, weight in enumerate(weights.tolist()):
        row = (rows + torch.ceil(i * down - 0.5).long()[:, None]).clamp(0, h - 1)
        column = (columns + torch.ceil(i * right - 0.5).long()[:, None]).clamp(0, w - 1)
        total += at(x, row[:, :, None].expand(n, h, w), column[:, None].expand(n, h, w)).mul_(weight)
    wide = torch.floor(total * 257 + 0.5)
    return torch.floor(over(wide, 257)).to(torch.uint8)


@lru_cache(maxsize=64)
def _half_gaussian(radius: float, sigma: float) -> np.ndarray:
    weights = np.exp(-(np.arange(2 * math.ceil(radius) + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    return weights[weights > NEGLIGIBLE]


# -- zoom ----------------------------------------------------------------------------------------------------------


def zoom_blur(images: Tensor, constant: tuple[float, float]) -> Tensor:
    """The mean of the image and of itself enlarged, factors from 1 up to a stop by a step."""
    factors = np.arange(1, *constant)
    x = unit(images).float()
    rows, total = x.double().mT, torch.zeros_like(x)
    for factor in factors.tolist():
        matrix = on(zoom_matrix(images.shape[-1], factor), images)
        total += apply_columns(apply_columns(rows, matrix).mT, matrix).float()
    return levels(over(x + total, len(factors) + 1))


@lru_cache(maxsize=512)
def zoom_matrix(side: int, factor: float) -> np.ndarray:
    """(side, side): a line of pixels -> its middle enlarged by straight interpolation, the middle of that."""
    kept = math.ceil(side / factor)
    first = (side - kept) // 2
    made = round(kept * factor)
    places = (np.arange(side) + (made - side) // 2) * ((kept - 1) / (made - 1))
    low = np.minimum(np.floor(places).astype(np.int64), kept - 1)
    share = places - low
    matrix = np.zeros((side, side))
    inside = places <= kept - 1  # a place that rounding puts beyond the last pixel is black, as in SciPy
    for i in np.flatnonzero(inside):
        matrix[i, first + low[i]] += 1 - share[i]
        if share[i] > 0:
            matrix[i, first + low[i] + 1] += share[i]
    return matrix
