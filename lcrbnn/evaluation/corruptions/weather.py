"""Weather corruptions, which are snow, frost, fog and brightness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.blur import apply_motion_blur, zoom_matrix
from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.pixel_operations import (
    apply_rows_and_columns,
    hsv_to_rgb,
    rgb_to_hsv,
    to_tensor_like,
    to_uint8,
    to_unit_range,
)

SnowParameters = tuple[
    float, float, float, float, float, float, float
]  # noise mean, noise std, zoom, threshold, blur radius, blur std, weight of the original image
# Largest random deviation from the mean of the neighbours, at the first level of the plasma fractal
INITIAL_ROUGHNESS = 100.0


def draw_snow(rng: ImageRandom, images: Tensor, parameters: SnowParameters) -> tuple[Tensor, Tensor]:
    """Return noise for the snowflakes (n, h, w) and the angles of their fall, from -135 to -45 degrees (n,)."""
    mean, std = parameters[:2]
    return rng.normal(*images.shape[-2:]) * std + mean, rng.uniform() * 90 - 135


def snow(images: Tensor, parameters: SnowParameters, flakes: Tensor, angle: Tensor) -> Tensor:
    """Return whitened images with motion-blurred snowflakes.

    The flakes are added twice: the second time rotated by 180 degrees.
    """
    _, _, zoom_factor, threshold, blur_radius, blur_std, image_weight = parameters
    layer = flakes[:, None]
    if zoom_factor != 1:
        layer = apply_rows_and_columns(layer, to_tensor_like(zoom_matrix(images.shape[-1], zoom_factor), images))
    layer = to_unit_range(
        apply_motion_blur(to_uint8(layer.where(layer >= threshold, 0.0)), blur_radius, blur_std, angle)
    )
    x = to_unit_range(images, torch.float32)
    x = x * image_weight + torch.maximum(x, _to_gray(x) * 1.5 + 0.5) * (1 - image_weight)
    return to_uint8(x.double() + layer + layer.flip(-1, -2))


def _to_gray(x: Tensor) -> Tensor:
    """Return the gray values of float32 colors. All bits equal those of OpenCV.

    OpenCV starts with green. Then it adds red and blue, with one rounding each (fused multiply-add).
    """
    total = x[:, 1:2] * 0.587
    for channel, weight in ((0, 0.299), (2, 0.114)):
        product = x[:, channel : channel + 1].double() * float(
            np.float32(weight)
        )  # the product is exact in float64, because it has 48 bits
        total = (product + total.double()).float()
    return total


def draw_crop(rng: ImageRandom, images: Tensor, parameters: tuple[float, float]) -> tuple[Tensor]:
    """Return a random crop of a frost photo for each image, uint8."""
    side = images.shape[-1]
    assert rng.photos is not None
    photo_indices = rng.integers(0, rng.photos.count)
    sizes = rng.photos.get_sizes(side).to(images.device)[photo_indices]
    corners = torch.stack([rng.integers(0, sizes[:, i] - side) for i in (0, 1)], 1)
    return (rng.photos.crop_photos(side, photo_indices, corners),)


def frost(images: Tensor, parameters: tuple[float, float], crop: Tensor) -> Tensor:
    """Return the weighted sum of an image and its frost crop."""
    image_weight, frost_weight = parameters
    return (images.double() * image_weight + crop.double() * frost_weight).clamp(0, 255).to(torch.uint8)


def draw_plasma(rng: ImageRandom, images: Tensor, parameters: tuple[float, float]) -> tuple[list[Tensor]]:
    """Return uniform random numbers (n, 3, k, k) for each level of the plasma fractal, from coarse to fine."""
    side, levels = _next_power_of_two(images.shape[-1]), []
    for level in range(side.bit_length() - 1):
        levels.append(rng.uniform(3, 1 << level, 1 << level))
    return (levels,)


def _next_power_of_two(side: int) -> int:
    """Return the smallest power of two that is at least `side`."""
    return 1 << (side - 1).bit_length()


def fog(images: Tensor, parameters: tuple[float, float], draws: list[Tensor]) -> Tensor:
    """Return images plus a plasma fractal. The sum is scaled so that the largest value stays the same."""
    amount, decay = parameters
    side = images.shape[-1]
    x = to_unit_range(images)
    brightest = x.amax((1, 2, 3), keepdim=True)
    x = x + plasma_fractal(draws, decay)[:, None, :side, :side] * amount
    return to_uint8(x * brightest / (brightest + amount))


def plasma_fractal(draws: list[Tensor], decay: float) -> Tensor:
    """Return plasma fractals (n, k, k) in [0, 1], made from the numbers of draw_plasma.

    The algorithm is diamond-square on a torus.
    """
    side, device = 1 << len(draws), draws[0].device
    field = torch.zeros(len(draws[0]), side, side, dtype=torch.float64, device=device)
    roughness = INITIAL_ROUGHNESS
    for level, numbers in enumerate(draws):
        step = side >> level
        half = step // 2

        def perturb_mean(total: Tensor, uniform: Tensor, roughness: float = roughness) -> Tensor:
            return total / 4 + (uniform * (2 * roughness) - roughness) * roughness

        corners = field[:, ::step, ::step]
        vertical_pairs = corners + corners.roll(-1, 1)
        field[:, half::step, half::step] = perturb_mean(vertical_pairs + vertical_pairs.roll(-1, 2), numbers[:, 0])
        centers = field[:, half::step, half::step]
        horizontal_edge_sum = (centers + centers.roll(1, 1)) + (corners + corners.roll(-1, 2))
        vertical_edge_sum = (centers + centers.roll(1, 2)) + (corners + corners.roll(-1, 1))
        field[:, ::step, half::step] = perturb_mean(horizontal_edge_sum, numbers[:, 1])
        field[:, half::step, ::step] = perturb_mean(vertical_edge_sum, numbers[:, 2])
        roughness /= decay
    field = field - field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


def brightness(images: Tensor, offset: float) -> Tensor:
    """Return brighter images, with an offset added to the V channel of HSV."""
    hue, saturation, value = rgb_to_hsv(to_unit_range(images))
    return to_uint8(hsv_to_rgb(hue, saturation, (value + offset).clamp(0, 1)))
