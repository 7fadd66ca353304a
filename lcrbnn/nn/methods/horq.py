"""HORQ (high-order residual quantization) approximates the residual of a sign by further signs (Li et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor
from lcrbnn.nn.methods.hwgq import HwgqWeight


class HorqWeight(HwgqWeight):
    """Returns alpha sign(w), as in the XNOR-Net paper. alpha is the mean |w| of the filter.

    The gradient passes straight to w. There is no released code.
    """


class HorqActivation(ActivationBinarizer):
    """Returns b_1 sign(x) + b_2 sign(x - b_1 sign(x)) + ... with b = mean absolute residual of the sample.

    The option `bits` is the number of terms (the order), 2 in the paper. The paper computes a mean for every patch of
    the image. Here, as in the code of XNOR-Net, the scale has no spatial axes. So it is one number per sample. The
    slope of the whole sum is 1 where |x| < 1: the jumps of the residual do not contribute, and b has no gradient. An
    exported network computes these scales for each image.
    """

    has_real_padding = True

    def __init__(self, channels: int, *, bits: int = 2) -> None:
        """Set the order, which is the number of terms."""
        super().__init__(channels)
        check_number(bits, "the order of horq", low=1, high=4, integer=True)
        self.bits = self.num_sample_reductions = bits

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return one base (signs and a scale) per order."""
        axes = tuple(range(1, x.dim()))
        residual, signs, scales = x.detach(), [], []
        for _ in range(self.bits):
            sign, scale = ops.sign(residual), residual.abs().mean(axes, keepdim=True)
            residual = residual - scale * sign
            signs.append(sign)
            scales.append(scale)
        # Only the first sign carries the gradient, divided by its scale. The other signs are constants. So the gradient
        # of the sum is that of the clipped identity.
        signs[0] = ops.surrogate_sign(x, _clip_slope_over_scale, scales[0])
        if self.bits == 1:
            return BinaryTensor(signs[0], scales[0])
        return BinaryTensor(torch.stack(signs), torch.stack(scales), num_bases=self.bits)


def _clip_slope_over_scale(x: Tensor, scale: Tensor | None, q: Tensor | None) -> Tensor:
    assert scale is not None
    return (x.abs() < 1).to(x.dtype) / scale.clamp_min(1e-12)
