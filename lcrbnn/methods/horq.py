"""HORQ: high-order residual quantisation, the sign of what the last sign left over (Li et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.contract import ActivationBinarizer, Binary
from lcrbnn.methods.hwgq import HwgqWeight


class HorqWeight(HwgqWeight):
    """alpha sign(w) as XNOR-Net's paper has it: mean |w| of the filter, gradient straight to w; no code is released."""


class HorqActivation(ActivationBinarizer):
    """b_1 sign(x) + b_2 sign(x - b_1 sign(x)) + ..., each b the mean |.| of what is left, of each sample.

    `bits` is the order; the paper's is 2. It takes a mean for every patch of the image; as everywhere in this package
    (and in XNOR-Net's code) the scale is not a map, so it is one number a sample here. Slope: 1 where |x| < 1, for the
    value that is meant, not for each sign: the residual's jumps have no part in it, and b takes no gradient. A scale
    that depends on the image cannot be exported.
    """

    real_border = True

    def __init__(self, channels: int, *, bits: int = 2) -> None:
        """Take the order."""
        super().__init__(channels)
        number(bits, "the order of horq", low=1, high=4, whole=True)
        self.bits = self.sample_sums = bits

    def forward(self, x: Tensor) -> Binary:
        """One base an order."""
        axes = tuple(range(1, x.dim()))
        left, signs, scales = x.detach(), [], []
        for _ in range(self.bits):
            sign, scale = ops.sign(left), left.abs().mean(axes, keepdim=True)
            left = left - scale * sign
            signs.append(sign)
            scales.append(scale)
        # The gradient of the value is carried by the first sign alone, over its scale: the others are plain numbers.
        signs[0] = ops.surrogate_sign(x, _clip_over, scales[0])
        if self.bits == 1:
            return Binary(signs[0], scales[0])
        return Binary(torch.stack(signs), torch.stack(scales), bases=self.bits)


def _clip_over(x: Tensor, scale: Tensor | None, q: Tensor | None) -> Tensor:
    assert scale is not None
    return (x.abs() < 1).to(x.dtype) / scale.clamp_min(1e-12)
