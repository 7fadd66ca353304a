"""The spatter corruption adds drops of water with bright rims, or mud."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.pixel_operations import (
    correlate,
    divide,
    gaussian_filter,
    nearest_index,
    pad_image,
    to_unit_range,
)

SpatterParameters = tuple[
    float, float, float, float, float, int
]  # noise mean, noise std, smoothing std, threshold, amount, kind of liquid (1 = mud, else water)
WATER_RGB = (175 / 255, 238 / 255, 238 / 255)
MUD_RGB = (63 / 255, 42 / 255, 20 / 255)
MIN_MUD_COVER = 0.8
MAX_EDGE_DISTANCE_PX = 20  # largest distance to an edge in pixels; larger distances count as this distance
WEAK_EDGE_THRESHOLD, STRONG_EDGE_THRESHOLD = 50, 150  # lower and upper threshold of the Canny edge detector
RELIEF_KERNEL = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
BOX_KERNEL = np.ones((3, 3))
# Lengths of a straight, a diagonal and a knight's step in 1/65536 pixel, as in the distance transform of OpenCV.
STRAIGHT_STEP, DIAGONAL_STEP, KNIGHT_STEP = 65536, 91750, 143976
STEP_COSTS = [
    (i, j, {1: STRAIGHT_STEP, 2: DIAGONAL_STEP, 5: KNIGHT_STEP}[i * i + j * j])
    for i in range(-2, 3)
    for j in range(-2, 3)
    if i * i + j * j in (1, 2, 5)
]


def draw_liquid(rng: ImageRandom, images: Tensor, parameters: SpatterParameters) -> tuple[Tensor]:
    """Return normal noise (n, h, w)."""
    mean, std = parameters[:2]
    return (rng.normal(*images.shape[-2:]) * std + mean,)


def spatter(images: Tensor, parameters: SpatterParameters, liquid: Tensor) -> Tensor:
    """Return images with liquid at the pixels at which smoothed noise exceeds a threshold.

    At 224 pixels, water equals that of the published code only if OpenCV runs there without Intel IPP
    (`cv2.ipp.setUseIPP(False)`). With IPP, the distances differ by up to 8e-5, and pixel values by up to 11 levels.
    """
    _, _, smoothing_std, threshold, amount, is_mud = parameters
    liquid = gaussian_filter(liquid, smoothing_std)
    liquid = liquid.where(liquid >= threshold, 0.0)
    x = to_unit_range(images, torch.float32)
    if is_mud:
        cover = gaussian_filter((liquid > threshold).float(), amount)
        cover = cover.where(cover >= MIN_MUD_COVER, 0.0)[:, None]
        x = x * (1 - cover) + _color_tensor(MUD_RGB, x) * cover
    else:
        x = x + _compute_shine(liquid, amount)[:, None] * _color_tensor(WATER_RGB, x)
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def _color_tensor(color: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(color, device=like.device).view(1, 3, 1, 1)


def _compute_shine(liquid: Tensor, amount: float) -> Tensor:
    """Return how strongly each pixel gets the colour of water, float32 (n, h, w)."""
    level = (liquid * 255).to(torch.uint8)
    distance = distance_to_edge(canny_edges(level)).clamp(max=MAX_EDGE_DISTANCE_PX)
    distance = torch.floor((correlate(distance, BOX_KERNEL) * (1 / 9)).float())
    rim = correlate(equalize_levels(distance), RELIEF_KERNEL).clamp(0, 255)
    rim = torch.round(divide(correlate(rim, BOX_KERNEL), 9)).float()
    shine = level.float() * rim
    max_shine = shine.amax((1, 2), keepdim=True)
    return shine / max_shine.where(max_shine > 0, 1.0) * amount


def canny_edges(level: Tensor) -> Tensor:
    """Return the Canny edges of uint8 images (n, h, w) as bool. The edges equal those of OpenCV."""
    h, w = level.shape[-2:]
    padded_level = pad_image(level.int(), 1, nearest_index)

    def shift(x: Tensor, i: int, j: int) -> Tensor:
        return x[..., 1 + i : 1 + i + h, 1 + j : 1 + j + w]

    def sobel(shifted: Callable[[int, int], Tensor]) -> Tensor:
        return (
            (shifted(-1, 1) - shifted(-1, -1)) + 2 * (shifted(0, 1) - shifted(0, -1)) + (shifted(1, 1) - shifted(1, -1))
        )

    gradient_x, gradient_y = (
        sobel(lambda i, j: shift(padded_level, i, j)),
        sobel(lambda i, j: shift(padded_level, j, i)),
    )
    size = gradient_x.abs() + gradient_y.abs()
    padded_size = torch.nn.functional.pad(size, (1, 1, 1, 1))
    horizontal_limit = gradient_x.abs() * 13573  # the tangent of 22.5 degrees, in units of 1/32768
    scaled_gradient_y = gradient_y.abs() << 15
    is_horizontal, is_vertical = (
        scaled_gradient_y < horizontal_limit,
        scaled_gradient_y > horizontal_limit + (gradient_x.abs() << 16),
    )
    has_same_sign = (gradient_x ^ gradient_y) >= 0

    def is_local_maximum(i: int, j: int, allow_ties: bool) -> Tensor:
        next_size = shift(padded_size, i, j)
        return (size > shift(padded_size, -i, -j)) & ((size >= next_size) if allow_ties else (size > next_size))

    is_diagonal_maximum = torch.where(has_same_sign, is_local_maximum(1, 1, False), is_local_maximum(1, -1, False))
    is_maximum = torch.where(
        is_horizontal,
        is_local_maximum(0, 1, True),
        torch.where(is_vertical, is_local_maximum(1, 0, True), is_diagonal_maximum),
    )
    candidates = is_maximum & (size > WEAK_EDGE_THRESHOLD)
    edges = candidates & (size > STRONG_EDGE_THRESHOLD)
    while True:  # candidates that touch an edge become edges too
        grown_edges = torch.nn.functional.max_pool2d(edges[:, None].float(), 3, 1, 1)[:, 0].bool() & candidates
        if torch.equal(grown_edges, edges):
            return edges
        edges = grown_edges


def distance_to_edge(edge: Tensor) -> Tensor:
    """Return the distance of each pixel to the nearest edge in pixels, float32 (n, h, w).

    It is the length of a path whose steps have the lengths STEP_COSTS.
    """
    h, w = edge.shape[-2:]
    max_distance = (MAX_EDGE_DISTANCE_PX + 1) * STRAIGHT_STEP
    distance = torch.where(edge, 0, max_distance).int()
    while True:
        padded = torch.nn.functional.pad(distance, (2, 2, 2, 2), value=max_distance)
        shorter = distance
        for i, j, cost in STEP_COSTS:
            shorter = torch.minimum(shorter, padded[:, 2 + i : 2 + i + h, 2 + j : 2 + j + w] + cost)
        if torch.equal(shorter, distance):
            return distance.float() / STRAIGHT_STEP
        distance = shorter


def equalize_levels(levels: Tensor) -> Tensor:
    """Return levels (n, h, w) after histogram equalization to 0..255, as in OpenCV.

    The input levels are integers from 0 to MAX_EDGE_DISTANCE_PX.
    """
    num_pixels = levels[0].numel()
    # number of pixels for each image and each distance, (n, MAX_EDGE_DISTANCE_PX + 1)
    counts = torch.stack([(levels == v).sum((1, 2)) for v in range(MAX_EDGE_DISTANCE_PX + 1)], 1)
    cumulative = torch.stack([counts[:, : v + 1].sum(1) for v in range(MAX_EDGE_DISTANCE_PX + 1)], 1)
    lowest_level = (counts > 0).int().argmax(1, keepdim=True)
    remaining_pixels = num_pixels - counts.gather(1, lowest_level)
    scale = torch.full_like(remaining_pixels, 255, dtype=torch.float32) / remaining_pixels.clamp(min=1)
    table = torch.round((cumulative - counts.gather(1, lowest_level)).float() * scale).clamp(0, 255)
    table = torch.where(remaining_pixels == 0, torch.arange(MAX_EDGE_DISTANCE_PX + 1, device=levels.device), table)
    return table.gather(1, levels.long().flatten(1)).view_as(levels)
