"""Weather: snow, frost, fog, and brightness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.blur import drag, zoom_matrix
from lcrbnn.corrupt.colors import from_hsv, to_hsv
from lcrbnn.corrupt.pixels import apply_rows_and_columns, levels, on, unit
from lcrbnn.corrupt.source import Source

Snow = tuple[float, float, float, float, float, float, float]  # mean, deviation, zoom, threshold, radius, sigma, mix
FIRST_ROUGHNESS = 100.0  # of the plasma: how far a point may lie from the mean of its neighbours


def draw_snow(source: Source, images: Tensor, constant: Snow) -> tuple[Tensor, Tensor]:
    """Flakes (n, h, w), and the angle (n,) at which they fall, in degrees from -135 to -45."""
    mean, deviation = constant[:2]
    return source.normal(*images.shape[-2:]) * deviation + mean, source.uniform() * 90 - 135


def snow(images: Tensor, constant: Snow, flakes: Tensor, angle: Tensor) -> Tensor:
    """Enlarged flakes, dragged along their fall, twice (turned by half), on a whitened image."""
    _, _, zoom, threshold, radius, sigma, mix = constant
    layer = flakes[:, None]
    if zoom != 1:
        layer = apply_rows_and_columns(layer, on(zoom_matrix(images.shape[-1], zoom), images))
    layer = unit(drag(levels(layer.where(layer >= threshold, 0.0)), radius, sigma, angle))
    x = unit(images, torch.float32)
    x = x * mix + torch.maximum(x, _gray(x) * 1.5 + 0.5) * (1 - mix)
    return levels(x.double() + layer + layer.flip(-1, -2))


def _gray(x: Tensor) -> Tensor:
    """OpenCV's grey of float32 colours: green first, red and blue each multiplied and added with one rounding.

    Of twelve orders and roundings it is the one that gives OpenCV's outputs, bit by bit.
    """
    total = x[:, 1:2] * 0.587
    for channel, weight in ((0, 0.299), (2, 0.114)):
        product = x[:, channel : channel + 1].double() * float(np.float32(weight))  # exact: 48 bits
        total = (product + total.double()).float()
    return total


def draw_crop(source: Source, images: Tensor, constant: tuple[float, float]) -> tuple[Tensor]:
    """A piece of a frost photo for each image, uint8 like the images."""
    side = images.shape[-1]
    assert source.photos is not None
    which = source.whole(0, source.photos.count)
    sizes = source.photos.sizes(side).to(images.device)[which]
    corner = torch.stack([source.whole(0, sizes[:, i] - side) for i in (0, 1)], 1)
    return (source.photos.crops(side, which, corner),)


def frost(images: Tensor, constant: tuple[float, float], crop: Tensor) -> Tensor:
    """The image and the frost, each with a weight."""
    own, ice = constant
    return (images.double() * own + crop.double() * ice).clamp(0, 255).to(torch.uint8)


def draw_plasma(source: Source, images: Tensor, constant: tuple[float, float]) -> tuple[list[Tensor]]:
    """For each level of the plasma, from coarse to fine, (n, 3, k, k) from 0 to 1."""
    side, found = _map_side(images.shape[-1]), []
    for level in range(side.bit_length() - 1):
        found.append(source.uniform(3, 1 << level, 1 << level))
    return (found,)


def _map_side(side: int) -> int:
    """The power of two that covers an image."""
    return 1 << (side - 1).bit_length()


def fog(images: Tensor, constant: tuple[float, float], draws: list[Tensor]) -> Tensor:
    """Clouds of plasma added, and all made as much darker that white stays white."""
    amount, decay = constant
    side = images.shape[-1]
    x = unit(images)
    brightest = x.amax((1, 2, 3), keepdim=True)
    x = x + plasma(draws, decay)[:, None, :side, :side] * amount
    return levels(x * brightest / (brightest + amount))


def plasma(draws: list[Tensor], decay: float) -> Tensor:
    """(n, k, k) from 0 to 1 by the diamond-square algorithm on a torus; `draws` as draw_plasma gives them."""
    side, device = 1 << len(draws), draws[0].device
    field = torch.zeros(len(draws[0]), side, side, dtype=torch.float64, device=device)
    rough = FIRST_ROUGHNESS
    for level, drawn in enumerate(draws):
        step = side >> level
        half = step // 2

        def near(total: Tensor, u: Tensor, rough: float = rough) -> Tensor:
            return total / 4 + (u * (2 * rough) - rough) * rough

        corner = field[:, ::step, ::step]
        pair = corner + corner.roll(-1, 1)
        field[:, half::step, half::step] = near(pair + pair.roll(-1, 2), drawn[:, 0])
        middle = field[:, half::step, half::step]
        across = (middle + middle.roll(1, 1)) + (corner + corner.roll(-1, 2))
        along = (middle + middle.roll(1, 2)) + (corner + corner.roll(-1, 1))
        field[:, ::step, half::step] = near(across, drawn[:, 1])
        field[:, half::step, ::step] = near(along, drawn[:, 2])
        rough /= decay
    field = field - field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


def brightness(images: Tensor, more: float) -> Tensor:
    """Value, of hue, saturation and value, raised."""
    hue, saturation, value = to_hsv(unit(images))
    return levels(from_hsv(hue, saturation, (value + more).clamp(0, 1)))
