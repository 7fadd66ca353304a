"""DoReFa-Net: one scale a layer, activations quantised on [0, 1] (Zhou et al. 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer


class DorefaWeight(WeightBinarizer):
    """E sign(w), E = mean |w| of the whole layer, without gradient; that of E sign(w) passes straight to w."""

    def forward(self, weight: Tensor) -> Binary:
        """Signs and one scale for all filters."""
        scale = weight.detach().abs().mean()
        return Binary(ops.surrogate_sign(weight, ops.straight, 1 / scale.clamp_min(1e-12)), scale)


class _Levels(torch.autograd.Function):
    # Bit b of the code, as a sign, for b = 0 .. bits-1 along a new first axis.
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        ctx.save_for_backward(x)
        code = torch.floor(x.clamp(0, 1) * (2**bits - 1) + 0.5).to(torch.int32)
        digits = torch.stack([(code >> b) & 1 for b in range(bits)])
        return digits.to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # The scales of the bits sum to 1/2, so 2 * (sum of the bits' gradients) is the gradient of the level.
        (x,) = ctx.saved_tensors
        inside = ((x >= 0) & (x <= 1)).to(grad.dtype)
        return 2 * grad.sum(0) * inside, None


class DorefaActivation(ActivationBinarizer):
    """round((2^bits - 1) clip(x, 0, 1)) / (2^bits - 1), slope 1 on [0, 1]: for one bit {0, 1}, not +-1.

    A tie rounds up (0.5 becomes 1), in line with sign(0) = +1. A level is the sum of its bits, each a sign with its own
    scale, plus 1/2: `bits` binary bases.
    """

    def __init__(self, channels: int, *, bits: int = 1) -> None:
        """Take the number of bits of an activation."""
        super().__init__(channels)
        number(bits, "the bits of a dorefa activation", low=1, high=8, whole=True)
        self.bits = bits

    def padding_sign(self, value: float) -> float:
        """Zero padding is level 0: every bit unset, so -1."""
        return 2 * value - 1

    def forward(self, x: Tensor) -> Binary:
        """One base a bit."""
        signs = _Levels.apply(x, self.bits)
        half = x.new_full((), 0.5)
        if self.bits == 1:
            return Binary(signs[0], half, half)
        weight = 2.0 ** torch.arange(self.bits, device=x.device, dtype=x.dtype) / (2 * (2**self.bits - 1))
        return Binary(signs, weight.reshape(-1, *[1] * x.dim()), half, self.bits)
