"""DoReFa-Net has one scale per layer, and quantizes activations on [0, 1] (Zhou et al. 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer


class DorefaWeight(WeightBinarizer):
    """Returns E sign(w), where E is the mean |w| of the whole layer, without gradient.

    The gradient passes straight to w. The gradient of E sign(w) is not multiplied by E.
    """

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one scale for all filters."""
        scale = weight.detach().abs().mean()
        return BinaryTensor(ops.surrogate_sign(weight, ops.identity_slope, 1 / scale.clamp_min(1e-12)), scale)


class _LevelBits(torch.autograd.Function):
    # Autograd function that returns the bits of the quantized level as signs, along a new first axis, lowest bit first.
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        ctx.save_for_backward(x)
        code = torch.floor(x.clamp(0, 1) * (2**bits - 1) + 0.5).to(torch.int32)
        digits = torch.stack([(code >> b) & 1 for b in range(bits)])
        return digits.to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # The scales of the bits add up to 1/2. The gradient of a bit is its scale times the gradient of the level. So
        # the gradient of the level is 2 * (sum over bits).
        (x,) = ctx.saved_tensors
        inside = ((x >= 0) & (x <= 1)).to(grad.dtype)
        return 2 * grad.sum(0) * inside, None


class DorefaActivation(ActivationBinarizer):
    """Returns round((2^bits - 1) clip(x, 0, 1)) / (2^bits - 1) with slope 1 on [0, 1].

    One bit gives the levels 0 and 1, not -1 and +1. A tie rounds up (0.5 becomes 1), which is consistent with sign(0) =
    +1. A level is 1/2 plus the sum of its bits. Each bit is a sign with its own scale, so there are `bits` binary
    bases. Activations of up to 4 bits can be exported, with one binary product per level but the lowest.
    """

    def __init__(self, channels: int, *, bits: int = 1) -> None:
        """Set the number of bits per activation."""
        super().__init__(channels)
        check_number(bits, "the bits of a dorefa activation", low=1, high=8, integer=True)
        self.bits = bits

    def padding_sign(self, value: float) -> float:
        """Return -1 for zero padding, because zero is the level in which no bit is set."""
        return 2 * value - 1

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return one base (signs and a scale) per bit."""
        signs = _LevelBits.apply(x, self.bits)
        half = x.new_full((), 0.5)
        if self.bits == 1:
            return BinaryTensor(signs[0], half, half)
        weight = 2.0 ** torch.arange(self.bits, device=x.device, dtype=x.dtype) / (2 * (2**self.bits - 1))
        return BinaryTensor(signs, weight.reshape(-1, *[1] * x.dim()), half, self.bits)
