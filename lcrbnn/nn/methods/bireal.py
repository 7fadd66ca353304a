"""Bi-Real net has the ApproxSign gradient and one scale per filter (Liu et al. 2018, as in the PyTorch re-release)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import (
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
)


class BirealWeight(WeightBinarizer):
    """Returns alpha sign(w) with slope 1 where |w| <= 1. alpha is the mean |w| of the filter, without gradient.

    As in the released code, the gradient of alpha sign(w) is not multiplied by alpha. For this, the slope contains 1 /
    alpha, which cancels the multiplication by the scale. New weights are uniform on [0, 0.001), so all their signs are
    positive. Adam changes this quickly, SGD hardly at all.
    """

    def initialize(self, weight: Tensor) -> None:
        """Draw the weight uniformly from [0, 0.001), as the released code does."""
        torch.nn.init.uniform_(weight, 0, 0.001)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one scale per filter."""
        alpha = mean_magnitude(weight.detach())
        inverse_alpha = broadcast_over_weight(1 / alpha.clamp_min(1e-12), weight)
        return BinaryTensor(
            ops.surrogate_sign(weight, ops.closed_clip_slope, inverse_alpha), broadcast_over_output(alpha, weight)
        )


class BirealActivation(ActivationBinarizer):
    """Returns sign(x) with slope 2 - 2|x| where |x| < 1."""

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, ops.approx_sign_slope))
