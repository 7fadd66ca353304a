"""HWGQ: 2-bit activations with the optimal levels for a half-wave Gaussian (Cai et al. 2017)."""

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

LEVEL_STEP = 0.538  # the levels are 0, 1, 2 and 3 times this step
# A level applies above its threshold. The positive levels are separated at their midpoints.
LEVEL_THRESHOLDS = (0.0, 1.5 * LEVEL_STEP, 2.5 * LEVEL_STEP)
ACTIVATION_BITS = 2


class HwgqWeight(WeightBinarizer):
    """alpha sign(w), where alpha is the mean |w| of the filter, without gradient. The gradient passes straight to w.

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
    # Returns the two bits of the level as signs, along a new first axis. d level / dx = 1 where 0 < x <= 1.614.
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
    """0 where x <= 0, otherwise the nearest of 0.538, 1.076 and 1.614, with slope 1 where 0 < x <= 1.614.

    The levels suit a Gaussian of standard deviation 1: the released networks have a batch norm without a learned scale
    directly before them. The ResNets of this package have a learned scale, and a skip connection and a ReLU in between.
    A level is the sum of two signs with their own scales, plus half of the largest level. The two bits are
    exported as three binary products, one per threshold.
    """

    bits = ACTIVATION_BITS
    has_real_padding = True

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return one base per bit."""
        halves = LEVEL_STEP / 2 * 2.0 ** torch.arange(ACTIVATION_BITS, device=x.device, dtype=x.dtype)
        middle = x.new_full((), LEVEL_STEP * (2**ACTIVATION_BITS - 1) / 2)
        return BinaryTensor(_LevelBits.apply(x), halves.reshape(-1, *[1] * x.dim()), middle, ACTIVATION_BITS)
