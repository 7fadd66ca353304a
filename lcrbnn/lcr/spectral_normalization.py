"""Spectral normalization (Miyato et al. 2018) of binary layers, before or after the sign.

Spectral normalization has little effect on a binary network, in contrast to Fig. 1b of the LCR paper. Before the sign,
dividing a weight by its norm does not change its signs. After the sign, the norm is one factor per layer, and the next
batch norm removes it. Only the magnitude of the gradient changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryLayer, WeightNormalizer
from lcrbnn.nn.methods.binarizer import BinaryTensor
from lcrbnn.nn.model_hooks import iter_binary_layers

MIN_NORM = 1e-12
# Number of power iterations when the normalizer is created; each training step adds one iteration
INITIAL_ITERATIONS = 15


class SpectralNormalizer(WeightNormalizer):
    """Normalizer that divides a weight W, one row per filter, by u^T W v. Each training step updates u and v."""

    u: Tensor
    v: Tensor

    def __init__(self, layer: BinaryLayer, *, after_sign: bool) -> None:
        """Draw u from the default random generator of PyTorch and run the first power iterations."""
        super().__init__()
        self.after_sign = after_sign
        rows = layer.weight.detach().flatten(1)
        self.register_buffer("u", nn.functional.normalize(torch.randn(rows.shape[0]).to(rows), dim=0))
        self.register_buffer("v", rows.new_zeros(rows.shape[1]))
        for _ in range(INITIAL_ITERATIONS):
            self.update(layer)

    def normalize_latent(self, weight: Tensor) -> Tensor:
        """Return W divided by its norm, or W itself if the binary weight is divided instead."""
        return weight if self.after_sign else weight / self.norm(weight.flatten(1))

    def normalize_binary(self, weight: BinaryTensor) -> BinaryTensor:
        """Return the binary weight divided by its norm, or unchanged if the latent weight is divided instead."""
        if not self.after_sign:
            return weight
        norm = self.norm(_flatten_binary_weight(weight))
        offset = None if weight.offset is None else weight.offset / norm
        return weight._replace(scale=(1 if weight.scale is None else weight.scale) / norm, offset=offset)

    def norm(self, rows: Tensor) -> Tensor:
        """Return u^T W v, but at least MIN_NORM.

        It has full precision also under autocast, and it is differentiable in W.
        """
        with torch.autocast(rows.device.type, enabled=False):
            return torch.dot(self.u, torch.mv(rows.to(self.u.dtype), self.v)).clamp_min(MIN_NORM)

    @torch.no_grad()
    def update(self, layer: BinaryLayer) -> None:
        """Update u and v with one step of power iteration."""
        weight = layer.weight_binarizer(layer.weight) if self.after_sign else None
        rows = layer.weight.flatten(1) if weight is None else _flatten_binary_weight(weight)
        self.v.copy_(nn.functional.normalize(torch.mv(rows.T, self.u), dim=0, eps=MIN_NORM))
        self.u.copy_(nn.functional.normalize(torch.mv(rows, self.v), dim=0, eps=MIN_NORM))


def _flatten_binary_weight(weight: BinaryTensor) -> Tensor:
    """Return a binary weight with a single base as real numbers, one row per filter. Spatial scales are averaged."""
    rows = weight.signs.flatten(1)
    for values, is_offset in ((weight.scale, False), (weight.offset, True)):
        if values is not None:
            column = (values if values.dim() < 3 else values.mean((1, 2))).reshape(-1, 1)
            rows = rows + column if is_offset else rows * column
    return rows


def normalize_latent_weights(model: nn.Module) -> None:
    """Make all binary layers divide their latent weights by the spectral norm."""
    for _, layer in iter_binary_layers(model):
        layer.normalizer = SpectralNormalizer(layer, after_sign=False)


def normalize_binary_weights(model: nn.Module) -> None:
    """Make all binary layers divide their binary weights by the spectral norm."""
    for name, layer in iter_binary_layers(model):
        if layer.binarize_weight().num_bases != 1:
            raise InputError(
                f"the regularizer spectral-norm-binary needs one binary base per layer; layer {name!r} has several"
            )
        layer.normalizer = SpectralNormalizer(layer, after_sign=True)
