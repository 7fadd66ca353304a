"""HWGQ: activations of two bits, the best levels for a half-wave Gaussian (Cai et al. 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer, mean_magnitude, per_filter, per_output

STEP = 0.538  # the levels are 0, 1, 2 and 3 of it
EDGES = (0.0, 1.5 * STEP, 2.5 * STEP)  # above which the levels begin: midway between two that are positive
BITS = 2


class HwgqWeight(WeightBinarizer):
    """alpha sign(w), alpha = mean |w| of the filter, without gradient; that of alpha sign(w) passes straight to w."""

    def forward(self, weight: Tensor) -> Binary:
        """Signs and a scale a filter."""
        alpha = mean_magnitude(weight.detach())
        inverse = per_filter(1 / alpha.clamp_min(1e-12), weight)
        return Binary(ops.surrogate_sign(weight, ops.straight, inverse), per_output(alpha, weight))


class _Levels(torch.autograd.Function):
    # The two bits of the level, as signs, along a new first axis; d level / dx = 1 where 0 < x <= 1.614.
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        code = torch.stack([x > edge for edge in EDGES]).sum(0, dtype=torch.int32)
        digits = torch.stack([(code >> b) & 1 for b in range(BITS)])
        return digits.to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inside = ((x > 0) & (x <= STEP * (2**BITS - 1))).to(grad.dtype)
        return grad.sum(0) / (STEP * (2**BITS - 1) / 2) * inside


class HwgqActivation(ActivationBinarizer):
    """0 where x <= 0, else 0.538, 1.076 or 1.614, whichever is nearest; slope 1 where 0 < x <= 1.614.

    The levels suit a Gaussian of deviation 1: the released networks have a batch norm without a learned scale right
    before them. The package's ResNets have a learned one, and a skip and a ReLU between. A level is the sum of two
    signs with scales of their own, plus half the largest level. Two bits cannot be exported as one; the 1/32 row of the
    tables can.
    """

    bits = BITS
    real_border = True

    def forward(self, x: Tensor) -> Binary:
        """One base a bit."""
        halves = STEP / 2 * 2.0 ** torch.arange(BITS, device=x.device, dtype=x.dtype)
        middle = x.new_full((), STEP * (2**BITS - 1) / 2)
        return Binary(_Levels.apply(x), halves.reshape(-1, *[1] * x.dim()), middle, BITS)
