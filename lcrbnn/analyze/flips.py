"""How many signs of a binary network turn over when its images get noisy, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn.layers import binary_layers
from lcrbnn.models import Network
from lcrbnn.retention.capture import Point, maps_at


@torch.no_grad()
def layer_signs(model: Network, images: Tensor) -> dict[str, Tensor]:
    """The signs that each binary layer makes of its input, in evaluation mode; none of layers that take it as it is."""
    points = [Point(name, "in") for name, layer in binary_layers(model) if layer.input_binarizer is not None]
    maps = maps_at(model, points, images, signs=True)
    return {point.module: maps.binary[point].signs for point in points}


class Flips(NamedTuple):
    """Shares of a layer's signs that differ: from those of the noisy image, and between two different images."""

    noise: list[float]  # for each noisy version
    pairs: float  # what telling images apart takes: signs that never change cannot flip either


def flip_rates(model: Network, clean: Tensor, noisy: Sequence[Tensor]) -> dict[str, Flips]:
    """By layer, for several noisy versions of the same images."""
    before = layer_signs(model, clean)
    rates: dict[str, list[float]] = {name: [] for name in before}
    for images in noisy:
        for name, signs in layer_signs(model, images).items():
            rates[name].append((signs != before[name]).double().mean().item())
    return {name: Flips(rates[name], _between_images(signs)) for name, signs in before.items()}


def _between_images(signs: Tensor) -> float:
    """The share that differs, over all pairs of different images (the first axis but for bases)."""
    n = signs.shape[-4] if signs.dim() >= 4 else signs.shape[0]
    mean = signs.double().mean(-4 if signs.dim() >= 4 else 0)
    return ((1 - mean.square()) / 2).mean().item() * n / max(n - 1, 1)
