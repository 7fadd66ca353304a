"""HWGQ has 2-bit activations with the optimal levels for a half-wave Gaussian (Cai et al. 2017)."""

from __future__ import annotations

from typing import Any

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

LEVEL_STEP = 0.538  # distance between two levels; the levels are 0, 1, 2 and 3 times this step
# Inputs above a threshold get the next level. The thresholds between positive levels are midpoints.
LEVEL_THRESHOLDS = (0.0, 1.5 * LEVEL_STEP, 2.5 * LEVEL_STEP)
ACTIVATION_BITS = 2


class HwgqWeight(WeightBinarizer):
    """Returns alpha sign(w). alpha is the mean |w| of the filter, without gradient. The gradient passes straight to w.

    The gradient of alpha sign(w) is not multiplied by alpha.
    """

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and a scale per filter."""
        alpha = mean_magnitude(weight.detach())
        inverse_alpha = broadcast_over_weight(1 / alpha.clamp_min(1e-12), weight)
        return BinaryTensor(
            ops.surrogate_sign(weight, ops.identity_slope, inverse_alpha), broadcast_over_output(alpha, weight)
        )


class _LevelBits(torch.autograd.Function):
    # Autograd function that returns the two bits of the level as signs, along a new first axis. The slope of the level
    # is 1 where 0 < x <= 1.614.
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        code = torch.stack([x > edge for edge in LEVEL_THRESHOLDS]).sum(0, dtype=torch.int32)
        digits = torch.stack([(code >> b) & 1 for b in range(ACTIVATION_BITS)])
        return digits.to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inside = ((x > 0) & (x <= LEVEL_STEP * (2**ACTIVATION_BITS - 1))).to(grad.dtype)
        return grad.sum(0) / (LEVEL_STEP * (2**ACTIVATION_BITS - 1) / 2) * inside


class HwgqActivation(ActivationBinarizer):
    """Returns 0 where x <= 0, else the nearest of 0.538, 1.076 and 1.614. The slope is 1 where 0 < x <= 1.614.

    The levels are optimal for a Gaussian with standard deviation 1. In the released networks, a batch norm without a
    learned scale comes directly before them. In the ResNets of this package, the batch norm has a learned scale, and a
    skip connection and a ReLU follow the batch norm. Each of the four levels is the sum of two signs with their own
    scales and a constant. The two bits are exported as three binary products.
    """

    bits = ACTIVATION_BITS
    has_real_padding = True

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return one base (signs and a scale) per bit."""
        halves = LEVEL_STEP / 2 * 2.0 ** torch.arange(ACTIVATION_BITS, device=x.device, dtype=x.dtype)
        middle = x.new_full((), LEVEL_STEP * (2**ACTIVATION_BITS - 1) / 2)
        return BinaryTensor(_LevelBits.apply(x), halves.reshape(-1, *[1] * x.dim()), middle, ACTIVATION_BITS)
