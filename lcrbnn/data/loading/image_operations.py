"""AugMix, RandAugment and cutout for batches of tensors. Each image of a batch can get different operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

LEVELS = 256  # number of levels of a pixel value in a uint8 image
MAX_STRENGTH = 10.0
# The value of each operation at the strength MAX_STRENGTH. A translation is a fraction of the image side. The value of
# posterize is different: it is the number of bits that are kept at strength 0.
MAX_ROTATION_DEGREES, MAX_SHEAR_SLOPE, MAX_TRANSLATION_FRACTION, MAX_POSTERIZE_BITS = 30.0, 0.3, 1 / 3, 4


def apply_affine_maps(images: Tensor, maps: Tensor) -> Tensor:
    """Return uint8 images (n, c, h, w) warped by affine maps (n, 6).

    A map converts output to input coordinates (2 x 3 matrix). Pixel centres are at half-integer coordinates. Values
    between pixel centres are interpolated bilinearly. They are constant in the outermost half pixel and black outside
    the image.
    """
    h, w = images.shape[2:]
    y = (torch.arange(h, device=images.device) + 0.5)[:, None]
    x = torch.arange(w, device=images.device) + 0.5
    a, b, c, d, e, f = (coefficient[:, None, None] for coefficient in maps.unbind(1))
    column, row = a * x + b * y + c, d * x + e * y + f
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    column, row = column - 0.5, row - 0.5
    left, top = column.floor(), row.floor()
    fraction_x, fraction_y = (column - left)[:, None], (row - top)[:, None]
    flat = images.flatten(2)

    def gather_pixels(i: Tensor, j: Tensor) -> Tensor:
        index = i.long().clamp(0, h - 1) * w + j.long().clamp(0, w - 1)
        return flat.gather(2, index.flatten(1)[:, None].expand_as(flat)).unflatten(2, (h, w)).float()

    upper = torch.lerp(gather_pixels(top, left), gather_pixels(top, left + 1), fraction_x)
    lower = torch.lerp(gather_pixels(top + 1, left), gather_pixels(top + 1, left + 1), fraction_x)
    value = torch.lerp(upper, lower, fraction_y)
    return torch.where(inside[:, None], (value + 0.5).floor(), 0.0).to(torch.uint8)


def apply_color_tables(images: Tensor, tables: Tensor) -> Tensor:
    """Return uint8 images (n, c, h, w) with each value replaced by its entry in its channel's table, (n, c, 256)."""
    return tables.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)


def make_autocontrast_tables(images: Tensor) -> Tensor:
    """Return tables that stretch each channel from black to white. A channel with one value stays unchanged."""
    v = torch.arange(LEVELS, device=images.device)
    low, high = (f(images.flatten(2), 2)[..., None].long() for f in (torch.amin, torch.amax))
    stretched = ((v - low) * (LEVELS - 1)).div((high - low).clamp_min(1), rounding_mode="floor").clamp(0, LEVELS - 1)
    return torch.where(high > low, stretched, v)


def make_equalize_tables(images: Tensor) -> Tensor:
    """Return tables that equalize the histogram of each channel."""
    v = torch.arange(LEVELS, device=images.device)
    values = images.flatten(2).long()
    n, c, size = values.shape
    counts = torch.zeros(n, c, LEVELS, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add(2, values, torch.ones_like(values, dtype=torch.int32))
    below = counts.cumsum(2) - counts
    brightest = counts.gather(2, values.amax(2, keepdim=True))
    step = (size - brightest).div(LEVELS - 1, rounding_mode="floor")
    equalized = (step.div(2, rounding_mode="floor") + below).div(step.clamp_min(1), rounding_mode="floor")
    return torch.where(step > 0, equalized.clamp_max(LEVELS - 1), v)


def make_posterize_tables(images: Tensor, strength: Tensor) -> Tensor:
    """Return tables that keep only the highest bits of a value, from 4 bits (smallest strength) to 1 bit (largest)."""
    v = torch.arange(LEVELS, device=images.device)
    num_dropped_bits = 8 - MAX_POSTERIZE_BITS + (strength * MAX_POSTERIZE_BITS / MAX_STRENGTH).long()
    unit = torch.ones_like(num_dropped_bits) << num_dropped_bits
    return (v - v % unit[:, None])[:, None].expand(-1, images.shape[1], -1)


def make_solarize_tables(images: Tensor, strength: Tensor) -> Tensor:
    """Return tables that invert all values above a threshold. The threshold decreases with the strength."""
    v = torch.arange(LEVELS, device=images.device)
    threshold = LEVELS - (strength * LEVELS / MAX_STRENGTH).long()
    return torch.where(v < threshold[:, None], v, LEVELS - 1 - v)[:, None].expand(-1, images.shape[1], -1)


def _make_rotation_map(strength: Tensor, h: int, w: int) -> list[Tensor]:
    angle = torch.trunc(strength * MAX_ROTATION_DEGREES / MAX_STRENGTH) * (math.pi / 180)
    sin, cos = angle.sin(), angle.cos()
    x, y = w / 2, h / 2  # the image is rotated about its centre
    return [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]


def _translate(strength: Tensor, side: int) -> Tensor:
    return torch.trunc(strength * MAX_TRANSLATION_FRACTION * side / MAX_STRENGTH)


# Functions that return the six coefficients of an affine map for a signed strength, a height and a width. Translations
# are whole pixels and rotations are whole degrees, as in the published code of AugMix.
AFFINE_MAPS: dict[str, Callable[[Tensor, int, int], list]] = {
    "rotate": _make_rotation_map,
    "shear-x": lambda s, h, w: [1.0, s * MAX_SHEAR_SLOPE / MAX_STRENGTH, 0.0, 0.0, 1.0, 0.0],
    "shear-y": lambda s, h, w: [1.0, 0.0, 0.0, s * MAX_SHEAR_SLOPE / MAX_STRENGTH, 1.0, 0.0],
    "translate-x": lambda s, h, w: [1.0, 0.0, _translate(s, w), 0.0, 1.0, 0.0],
    "translate-y": lambda s, h, w: [1.0, 0.0, 0.0, 0.0, 1.0, _translate(s, h)],
}
# Functions that return the color tables for images and strengths.
COLOR_TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda images, s: make_autocontrast_tables(images),
    "equalize": lambda images, s: make_equalize_tables(images),
    "posterize": make_posterize_tables,
    "solarize": make_solarize_tables,
}
OPERATIONS = ("identity", *AFFINE_MAPS, *COLOR_TABLES)


def apply_operations(images: Tensor, operation_numbers: Tensor, strength: Tensor, is_negative: Tensor) -> Tensor:
    """Apply to image i the operation number operation_numbers[i] of OPERATIONS. Images are uint8 (n, c, h, w).

    The sign of the strength matters only for affine maps. Every operation is computed for every image, and the right
    result is selected. So the function never waits for the device, and a CUDA graph can capture it.
    """
    n, c, h, w = images.shape
    signed_strength = torch.where(is_negative, -strength, strength)
    zeros = torch.zeros_like(signed_strength)
    maps = torch.stack([zeros + coefficient for coefficient in (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)], 1)
    for name, make_map in AFFINE_MAPS.items():
        operation_maps = torch.stack([zeros + coefficient for coefficient in make_map(signed_strength, h, w)], 1)
        maps = torch.where((operation_numbers == OPERATIONS.index(name))[:, None], operation_maps, maps)
    tables = torch.arange(LEVELS, device=images.device).expand(n, c, -1)
    for name, make_tables in COLOR_TABLES.items():
        is_selected = (operation_numbers == OPERATIONS.index(name))[:, None, None]
        tables = torch.where(is_selected, make_tables(images, strength), tables)
    return apply_color_tables(apply_affine_maps(images, maps), tables)


AUGMIX_CHAINS, MAX_CHAIN_OPERATIONS = 3, 3
AUGMIX_MIN_STRENGTH, AUGMIX_MAX_STRENGTH = 0.1, 3.0
NUMBERS_PER_OPERATION = 3  # number of random numbers per operation: its kind, its strength, its sign
NUM_AUGMIX_NUMBERS = 1 + AUGMIX_CHAINS * (2 + NUMBERS_PER_OPERATION * MAX_CHAIN_OPERATIONS)
NUM_RANDAUGMENT_NUMBERS = 2 * NUMBERS_PER_OPERATION
NUM_CUTOUT_NUMBERS = 3


def augmix(images: Tensor, random_numbers: Tensor) -> Tensor:
    """Return the AugMix version (Hendrycks et al. 2020) of uint8 images (n, c, h, w), as float32 without rounding.

    Three chains of 1 to 3 operations are applied to each image. The results are averaged, and the average is mixed with
    the image. As in the paper, the weights of the chains follow the Dirichlet(1, 1, 1) distribution, and the weight of
    the average follows the Beta(1, 1) distribution.
    """
    mixture_weight, chain_numbers = random_numbers[:, 0], random_numbers[:, 1:].unflatten(1, (AUGMIX_CHAINS, -1))
    # exponential random numbers divided by their sum have a Dirichlet(1) distribution
    chain_weights = -torch.log1p(-chain_numbers[..., 0])
    chain_weights = chain_weights / chain_weights.sum(1, keepdim=True).clamp_min(1e-12)
    depths = 1 + (chain_numbers[..., 1] * MAX_CHAIN_OPERATIONS).long()
    chains = images[:, None].expand(-1, AUGMIX_CHAINS, -1, -1, -1).flatten(0, 1)
    choices = chain_numbers[..., 2:].unflatten(2, (MAX_CHAIN_OPERATIONS, NUMBERS_PER_OPERATION)).flatten(0, 1)
    for step in range(MAX_CHAIN_OPERATIONS):
        kind, strength, sign = choices[:, step].unbind(1)
        operation_numbers = 1 + (kind * (len(OPERATIONS) - 1)).long()
        strength = AUGMIX_MIN_STRENGTH + (AUGMIX_MAX_STRENGTH - AUGMIX_MIN_STRENGTH) * strength
        changed = apply_operations(chains, operation_numbers, strength, sign >= 0.5)
        chains = torch.where((step < depths.flatten())[:, None, None, None], changed, chains)
    mixed = (chains.unflatten(0, (-1, AUGMIX_CHAINS)).float() * chain_weights[:, :, None, None, None]).sum(1)
    return torch.lerp(images.float(), mixed, mixture_weight[:, None, None, None])


def rand_augment(images: Tensor, random_numbers: Tensor) -> Tensor:
    """Return images after two random operations of random strength (RandAugment, Cubuk et al. 2020)."""
    for choice in random_numbers.unflatten(1, (-1, NUMBERS_PER_OPERATION)).unbind(1):
        kind, strength, sign = choice.unbind(1)
        images = apply_operations(images, (kind * len(OPERATIONS)).long(), MAX_STRENGTH * strength, sign >= 0.5)
    return images


def cutout(images: Tensor, random_numbers: Tensor) -> Tensor:
    """Return images with a black square around a random pixel.

    Its side is half that of the image (Cutout, DeVries and Taylor 2017).
    """
    h, w = images.shape[2:]
    is_active, center_y, center_x = random_numbers.unbind(1)
    rows, columns = (torch.arange(side, device=images.device) for side in (h, w))
    top, left = ((center * side).long() - side // 4 for center, side in ((center_y, h), (center_x, w)))
    inside = [
        (line >= first[:, None]) & (line < first[:, None] + side // 2)
        for line, first, side in ((rows, top, h), (columns, left, w))
    ]
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :] & (is_active > 0)[:, None, None, None]
    return torch.where(square, torch.zeros_like(images), images)
