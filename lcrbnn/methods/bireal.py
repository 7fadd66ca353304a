"""Bi-Real net: the ApproxSign gradient, magnitude-aware weights (Liu et al. 2018, the PyTorch re-release)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer, mean_magnitude, per_filter, per_output


class BirealWeight(WeightBinarizer):
    """alpha sign(w), alpha = mean |w| of the filter, without gradient; that of alpha sign(w) passes where |w| <= 1.

    It is not multiplied by alpha: the released code says so, and the inverse scale undoes ours. A fresh weight is
    uniform on [0, 0.001): all positive, which Adam undoes and SGD hardly does.
    """

    def initialize(self, weight: Tensor) -> None:
        """Uniform on [0, 0.001), as in the released code."""
        torch.nn.init.uniform_(weight, 0, 0.001)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and a scale a filter."""
        alpha = mean_magnitude(weight.detach())
        inverse = per_filter(1 / alpha.clamp_min(1e-12), weight)
        return Binary(ops.surrogate_sign(weight, ops.clip_closed, inverse), per_output(alpha, weight))


class BirealActivation(ActivationBinarizer):
    """sign(x), slope 2 - 2|x| where |x| < 1."""

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(x, ops.triangle))
