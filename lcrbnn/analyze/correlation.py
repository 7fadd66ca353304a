"""How much the maps of different images in a batch are alike, layer by layer: the paper's Figure 3, with numbers.

Two measures of two maps, both flattened: the correlation, each map's own mean removed first, and the cosine, which
leaves it in and is what Eq. 7 assumes to be 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn.layers import binary_layers
from lcrbnn.models import Network
from lcrbnn.retention.capture import Point, maps_at, weights_only


class Maps(NamedTuple):
    """The maps of a batch at one place, a row an image: as they are, and as the next layer binarises them."""

    real: Tensor
    binary: Tensor | None  # None in a network that binarises no activations


class Alike(NamedTuple):
    """Of all pairs of different images: means of the absolute correlation and cosine, and the mean correlation."""

    correlation: float
    cosine: float
    signed: float


@torch.no_grad()
def layer_maps(model: Network, images: Tensor) -> dict[str, Maps]:
    """The inputs of the convolutions on the main path, and of the pool, in evaluation mode.

    At the pool nothing binarises the map; its sign is taken, as the retention loss does.
    """
    points = [Point(name, "in") for name in model.chain]
    binarised = bool(list(binary_layers(model))) and not weights_only(model)
    maps = maps_at(model, points, images, signs=binarised)
    return {
        point.module: Maps(
            maps.real[point].flatten(1).float(),
            maps.binarised(point, weights_only=False).flatten(1).float() if binarised else None,
        )
        for point in points
    }


def correlations(rows: Tensor) -> Tensor:
    """The N x N correlations of N rows, in double precision; 0 with a row whose numbers are all alike."""
    return cosines(rows.double() - rows.double().mean(1, keepdim=True))


def cosines(rows: Tensor) -> Tensor:
    """The N x N cosines of N rows; 0 with a row of zeros."""
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    return unit @ unit.T


def alike(rows: Tensor) -> Alike:
    """The means over all pairs of different rows."""
    correlation, cosine = _others(correlations(rows)), _others(cosines(rows))
    return Alike(correlation.abs().mean().item(), cosine.abs().mean().item(), correlation.mean().item())


def _others(matrix: Tensor) -> Tensor:
    return matrix[~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)]


def chance(size: int) -> float:
    """The mean absolute correlation of independent random maps of so many numbers."""
    return math.sqrt(2 / (math.pi * size))
