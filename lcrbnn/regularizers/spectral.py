"""Spectral normalisation (Miyato et al. 2018) of binary layers: before the sign, or after it.

On a binary network it can do little, whatever the paper's Fig. 1b says of sparsity. The sign does not see the size of
what it is taken of, so a weight that is divided by its norm before keeps its sign; after, the norm is one number that
the next batch norm takes out again. What is left is a change of the gradient's size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryLayer, Normalizer, binary_layers
from lcrbnn.methods import Binary

TINY = 1e-12
FIRST = 15  # power iterations at the start; one a step follows


class SpectralNormalizer(Normalizer):
    """Divides by u^T W v, W as a matrix a row a filter; u and v are kept from step to step, without gradient."""

    u: Tensor
    v: Tensor

    def __init__(self, layer: BinaryLayer, *, after_sign: bool) -> None:
        """Draw u from torch's generator, and iterate."""
        super().__init__()
        self.after_sign = after_sign
        rows = layer.weight.detach().flatten(1)
        self.register_buffer("u", nn.functional.normalize(torch.randn(rows.shape[0]).to(rows), dim=0))
        self.register_buffer("v", rows.new_zeros(rows.shape[1]))
        for _ in range(FIRST):
            self.step(layer)

    def before(self, weight: Tensor) -> Tensor:
        """W over its norm, unless that comes after the sign."""
        return weight if self.after_sign else weight / self.norm(weight.flatten(1))

    def after(self, weight: Binary) -> Binary:
        """The binary weight over its norm, if it comes after the sign."""
        if not self.after_sign:
            return weight
        norm = self.norm(_matrix(weight))
        offset = None if weight.offset is None else weight.offset / norm
        return weight._replace(scale=(1 if weight.scale is None else weight.scale) / norm, offset=offset)

    def norm(self, rows: Tensor) -> Tensor:
        """u^T W v, at least a tiny number, in full precision under autocast too; gradient flows to W."""
        with torch.autocast(rows.device.type, enabled=False):
            return torch.dot(self.u, torch.mv(rows.to(self.u.dtype), self.v)).clamp_min(TINY)

    @torch.no_grad()
    def step(self, layer: BinaryLayer) -> None:
        """One power iteration."""
        weight = layer.weight_binarizer(layer.weight) if self.after_sign else None
        rows = layer.weight.flatten(1) if weight is None else _matrix(weight)
        self.v.copy_(nn.functional.normalize(torch.mv(rows.T, self.u), dim=0, eps=TINY))
        self.u.copy_(nn.functional.normalize(torch.mv(rows, self.v), dim=0, eps=TINY))


def _matrix(weight: Binary) -> Tensor:
    """The weight meant, a row a filter, of one base; a scale of each position counts by its mean."""
    rows = weight.signs.flatten(1)
    for numbers, add in ((weight.scale, False), (weight.offset, True)):
        if numbers is not None:
            column = (numbers if numbers.dim() < 3 else numbers.mean((1, 2))).reshape(-1, 1)
            rows = rows + column if add else rows * column
    return rows


def normalize_before(model: nn.Module) -> None:
    """Divide latent weights by their norms."""
    for _, layer in binary_layers(model):
        layer.normalizer = SpectralNormalizer(layer, after_sign=False)


def normalize_after(model: nn.Module) -> None:
    """Divide binary weights by their norms."""
    for name, layer in binary_layers(model):
        if layer.binary_weight().bases != 1:
            raise InputError(f"layer {name!r} has several binary bases, and spectral-signs takes the norm of one")
        layer.normalizer = SpectralNormalizer(layer, after_sign=True)
