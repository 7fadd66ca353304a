"""BNN: plain signs, no scale (Hubara et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import InputError, number
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer


class BnnWeight(WeightBinarizer):
    """sign(w), straight-through.

    `limit`: after each step the latent weight is clamped to +-limit. The paper and older code use 1, which keeps
    weights where their sign can still flip; the official code of today does not clamp, hence the default, None.
    """

    def __init__(self, weight: Tensor, *, limit: float | None = None) -> None:
        """Take the clamp of the latent weight, if any."""
        super().__init__(weight)
        if limit is not None:
            number(limit, "the limit of latent weights", low=0)
            if limit == 0:
                raise InputError("the limit of latent weights must be more than 0, or all of them are 0; got 0")
        self.limit = limit

    def forward(self, weight: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(weight, ops.straight))

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Clamp to the limit."""
        if self.limit is not None:
            weight.clamp_(-self.limit, self.limit)


class BnnActivation(ActivationBinarizer):
    """sign(x), slope 1 where |x| <= 1: the hardtanh that the official code puts before its sign."""

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(x, ops.clip_closed))
