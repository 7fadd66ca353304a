"""Similarity between the activations of different images in a batch, per layer. Figure 3 of the paper shows the same.

Two measures compare flattened activations. The correlation subtracts their means first, and the cosine does not. Eq. 7
assumes that the cosine is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.lcr.capture import ModulePort, capture_maps, is_weights_only
from lcrbnn.lcr.choose_blocks import order_by_forward_pass
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.nn.models.network import Network


class LayerMaps(NamedTuple):
    """Activations of a batch at one layer, with one row per image, as real values and as values after binarization."""

    real: Tensor
    binary: Tensor | None  # binarized activations; None in a network with real activations


class Similarity(NamedTuple):
    """Absolute correlation, absolute cosine and signed correlation, averaged over all pairs of different images."""

    correlation: float
    cosine: float
    signed: float


@torch.no_grad()
def capture_layer_maps(model: nn.Module, images: Tensor) -> dict[str, LayerMaps]:
    """Return the inputs of the convolutions on the main path and of the pool, in evaluation mode.

    In a network that is not of this package, these are the inputs of the binary layers. In a real one, they are the
    inputs of all convolutions and linear layers. The pool does not binarize its input. The sign of the input is used as
    in the LCR loss.
    """
    points = [ModulePort(name, "in") for name in _find_measured_layers(model, images)]
    is_binary = bool(list(iter_binary_layers(model))) and not is_weights_only(model)
    maps = capture_maps(model, points, images, capture_binary=is_binary)
    return {
        point.module: LayerMaps(
            maps.real[point].flatten(1).float(),
            maps.get_binary_map(point, weights_only=False).flatten(1).float() if is_binary else None,
        )
        for point in points
    }


def _find_measured_layers(model: nn.Module, images: Tensor) -> Sequence[str]:
    if isinstance(model, Network):
        return model.main_path
    names = [name for name, _ in iter_binary_layers(model)]
    if not names:
        names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return order_by_forward_pass(model, names, images[:2])


def pairwise_correlations(rows: Tensor) -> Tensor:
    """Return the N x N correlations of N rows in double precision, or 0 for constant rows."""
    return pairwise_cosines(rows.double() - rows.double().mean(1, keepdim=True))


def pairwise_cosines(rows: Tensor) -> Tensor:
    """Return the N x N cosines of N rows in double precision, or 0 for rows of zeros."""
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    return unit @ unit.T


def mean_similarity(rows: Tensor) -> Similarity:
    """Return the similarity averaged over all pairs of different rows."""
    correlation, cosine = _off_diagonal(pairwise_correlations(rows)), _off_diagonal(pairwise_cosines(rows))
    return Similarity(correlation.abs().mean().item(), cosine.abs().mean().item(), correlation.mean().item())


def _off_diagonal(matrix: Tensor) -> Tensor:
    return matrix[~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)]


def expected_correlation(size: int) -> float:
    """Return the mean absolute correlation of independent random activations with this many numbers."""
    return math.sqrt(2 / (math.pi * size))
