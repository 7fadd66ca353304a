"""Blur corruptions, which are defocus, glass, motion, zoom and Gaussian blur."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.pixel_operations import (
    NEGLIGIBLE_WEIGHT,
    apply_columns,
    correlate,
    divide,
    gather_pixels,
    gaussian_filter,
    reflected_index,
    to_tensor_like,
    to_uint8,
    to_unit_range,
)


def gaussian_blur(images: Tensor, std: float) -> Tensor:
    """Return images blurred by a Gaussian. `std` is in pixels."""
    return to_uint8(gaussian_filter(to_unit_range(images), std))


# -- defocus -------------------------------------------------------------------------------------------------------


def defocus_blur(images: Tensor, parameters: tuple[float, float]) -> Tensor:
    """Return images convolved with a disk that has soft edges."""
    return to_uint8(correlate(to_unit_range(images), disk_kernel(*parameters)))


@lru_cache(maxsize=32)
def disk_kernel(radius: float, blur_std: float) -> np.ndarray:
    """Return a disk-shaped kernel, blurred by a small Gaussian. Its sum is 1.

    All steps use float32 as in the published code, because the last bits decide whether a white pixel stays white.
    """
    half_width = 8 if radius <= 8 else math.ceil(radius)
    offsets = np.arange(-half_width, half_width + 1)
    kernel = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float32)
    kernel /= kernel.sum()
    blur_half_width = 1 if radius <= 8 else 2
    weights = np.exp(-(np.arange(-blur_half_width, blur_half_width + 1) ** 2) / (2 * blur_std**2))
    weights = (weights / weights.sum()).astype(np.float32)
    for _ in range(2):
        padded = kernel[:, reflected_index(np.arange(-blur_half_width, len(offsets) + blur_half_width), len(offsets))]
        rows = weights[blur_half_width] * padded[:, blur_half_width:-blur_half_width]
        for distance in range(1, blur_half_width + 1):
            pair_sum = (
                padded[:, blur_half_width - distance : len(offsets) + blur_half_width - distance]
                + padded[:, blur_half_width + distance : len(offsets) + blur_half_width + distance]
            )
            rows = rows + weights[blur_half_width + distance] * pair_sum
        kernel = rows.T
    is_used = np.abs(kernel) > NEGLIGIBLE_WEIGHT
    used_half_width = int(np.abs(np.argwhere(is_used) - half_width).max())
    return np.ascontiguousarray(
        kernel[
            half_width - used_half_width : half_width + used_half_width + 1,
            half_width - used_half_width : half_width + used_half_width + 1,
        ]
    )


# -- glass ---------------------------------------------------------------------------------------------------------

# Standard deviation of the Gaussian, largest shift in pixels, number of rounds
GlassParameters = tuple[float, int, int]


def draw_glass_shifts(rng: ImageRandom, images: Tensor, parameters: GlassParameters) -> tuple[Tensor]:
    """Return random shifts of each pixel, (n, num_rounds, 2, h, w).

    Index 0 of axis 2 is the column shift, 1 the row shift.
    """
    _, max_shift, num_rounds = parameters
    return (rng.integers(-max_shift, max_shift, num_rounds, 2, *images.shape[-2:]),)


def glass_blur(images: Tensor, parameters: GlassParameters, shifts: Tensor) -> Tensor:
    """Return images that are blurred, then locally shuffled, then blurred again.

    The pixels are processed from the last to the first. Each one takes the current value of a neighbour. The published
    code is meant to swap the two pixels, but it only copies one. Pixels near the border do not change. This border is
    one pixel wider at the top and left.
    """
    std, max_shift, num_rounds = parameters
    n, c, side, _ = images.shape
    x = to_uint8(gaussian_filter(to_unit_range(images), std))
    source_index = torch.arange(side * side, device=images.device).repeat(n, 1)
    for round_index in range(num_rounds):
        flat_shifts = (shifts[:, round_index, 1] * side + shifts[:, round_index, 0]).reshape(n, -1)
        for pixel_group in _independent_pixel_groups(side, max_shift):
            pixels = to_tensor_like(pixel_group, images)
            source_index[:, pixels] = source_index.gather(1, pixels + flat_shifts[:, pixels])
    x = x.reshape(n, c, -1).gather(2, source_index[:, None].expand(n, c, -1)).view_as(images)
    return to_uint8(gaussian_filter(to_unit_range(x), std))


@lru_cache(maxsize=8)
def _independent_pixel_groups(side: int, max_shift: int) -> list[np.ndarray]:
    """Return groups of pixels.

    All pixels of a group can be replaced at once, with the same result as one after the other. With max_shift 1, shifts
    are -1 or 0. So a pixel only reads pixels that are replaced after it, and one group is enough. Otherwise the groups
    are slanted lines: each row is max_shift + 1 pixels ahead of the row above it.
    """
    descending_coordinates = np.arange(side - max_shift, max_shift, -1)
    row, column = (
        grid.reshape(-1) for grid in np.meshgrid(descending_coordinates, descending_coordinates, indexing="ij")
    )
    pixel_index = row * side + column
    if max_shift == 1:
        return [pixel_index]
    group_number = (side - row) * (max_shift + 1) + (side - column)
    return [pixel_index[group_number == t] for t in np.unique(group_number)]


# -- motion --------------------------------------------------------------------------------------------------------


def draw_angle(rng: ImageRandom, images: Tensor, parameters: tuple[float, float]) -> tuple[Tensor]:
    """Return random angles from -45 to 45 degrees, (n,)."""
    return (rng.uniform() * 90 - 45,)


def motion_blur(images: Tensor, parameters: tuple[float, float], angle: Tensor) -> Tensor:
    """Return images with motion blur at these angles. `parameters` are the radius and std of the blur."""
    return apply_motion_blur(images, *parameters, angle)


def apply_motion_blur(images: Tensor, radius: float, std: float, angle: Tensor) -> Tensor:
    """Return images with ImageMagick's motion blur, half a Gaussian along a line, in 16 bits with repeated edges."""
    n, _, h, w = images.shape
    weights = _half_gaussian(radius, std)
    x, total = images.double(), torch.zeros_like(images, dtype=torch.float64)
    direction_x, direction_y = (torch.cos(angle * (math.pi / 180)), torch.sin(angle * (math.pi / 180)))
    rows, columns = (torch.arange(side, device=images.device) for side in (h, w))
    for i, weight in enumerate(weights.tolist()):
        row = (rows + torch.ceil(i * direction_y - 0.5).long()[:, None]).clamp(0, h - 1)
        column = (columns + torch.ceil(i * direction_x - 0.5).long()[:, None]).clamp(0, w - 1)
        total += gather_pixels(x, row[:, :, None].expand(n, h, w), column[:, None].expand(n, h, w)).mul_(weight)
    sum_16bit = torch.floor(total * 257 + 0.5)
    return torch.floor(divide(sum_16bit, 257)).to(torch.uint8)


@lru_cache(maxsize=64)
def _half_gaussian(radius: float, std: float) -> np.ndarray:
    weights = np.exp(-(np.arange(2 * math.ceil(radius) + 1) ** 2) / (2 * std**2))
    weights /= weights.sum()
    return weights[weights > NEGLIGIBLE_WEIGHT]


# -- zoom ----------------------------------------------------------------------------------------------------------


def zoom_blur(images: Tensor, parameters: tuple[float, float]) -> Tensor:
    """Return the mean of the image and its enlargements.

    `parameters` are the largest factor and the step between factors.
    """
    factors = np.arange(1, *parameters)
    x = to_unit_range(images).float()
    rows, total = x.double().mT, torch.zeros_like(x)
    for factor in factors.tolist():
        matrix = to_tensor_like(zoom_matrix(images.shape[-1], factor), images)
        total += apply_columns(apply_columns(rows, matrix).mT, matrix).float()
    return to_uint8(divide(x + total, len(factors) + 1))


@lru_cache(maxsize=512)
def zoom_matrix(side: int, factor: float) -> np.ndarray:
    """Return the matrix (side, side) that enlarges the centre of a line of pixels by linear interpolation."""
    crop_side = math.ceil(side / factor)
    crop_start = (side - crop_side) // 2
    enlarged_side = round(crop_side * factor)
    positions = (np.arange(side) + (enlarged_side - side) // 2) * ((crop_side - 1) / (enlarged_side - 1))
    low = np.minimum(np.floor(positions).astype(np.int64), crop_side - 1)
    fraction = positions - low
    matrix = np.zeros((side, side))
    # Due to rounding, a position can be beyond the last pixel. Such positions are black, as in SciPy.
    is_inside = positions <= crop_side - 1
    for i in np.flatnonzero(is_inside):
        matrix[i, crop_start + low[i]] += 1 - fraction[i]
        if fraction[i] > 0:
            matrix[i, crop_start + low[i] + 1] += fraction[i]
    return matrix
