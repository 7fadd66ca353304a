"""BNN uses plain signs without a scale (Hubara et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.errors import InputError, check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer


class BnnWeight(WeightBinarizer):
    """Returns sign(w) with the straight-through gradient.

    If `limit` is set, the latent weight is clamped to [-limit, limit] after each step. The paper and older code use 1.
    This keeps weights in a range in which their sign can still change. The current official code does not clamp, so the
    default is None.
    """

    def __init__(self, weight: Tensor, *, limit: float | None = None) -> None:
        """Set the limit of the magnitude of the latent weight. None means no limit."""
        super().__init__(weight)
        if limit is not None:
            check_number(limit, "the limit of latent weights", low=0)
            if limit == 0:
                raise InputError(
                    "the limit of latent weights must be more than 0, otherwise all weights become 0; got 0"
                )
        self.limit = limit

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(weight, ops.identity_slope))

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Clamp the weight to the limit."""
        if self.limit is not None:
            weight.clamp_(-self.limit, self.limit)


class BnnActivation(ActivationBinarizer):
    """Returns sign(x) with slope 1 where |x| <= 1. The official code gets the same gradient with a hardtanh."""

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, ops.closed_clip_slope))
