"""XNOR-Net and BWN: signs of centred weights times their mean magnitude (Rastegari et al. 2016).

The spatial scale K of the paper's activations is absent from the released code, and here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer, mean_magnitude, per_filter, per_output


def _xnor_slope(w: Tensor, inverse_scale: Tensor | None, q: Tensor | None) -> Tensor:
    # The released code multiplies the gradient of alpha * sign by (alpha 1[|w|<1] + 1/n) (1 - 1/C_in) n. Here the
    # gradient arrives at the signs, alpha times larger, hence the inverse scale.
    assert inverse_scale is not None
    inside = (w.abs() < 1).to(w.dtype)
    n, channels = w[0].numel(), w.shape[1]
    return (inside + inverse_scale / n) * ((1 - 1 / channels) * n)


class XnorWeight(WeightBinarizer):
    """alpha sign(w), alpha = mean |w| of the filter, without gradient, of a latent weight kept centred and clamped.

    The released code centres the latent weight over input channels and clamps it to [-1, 1] before each step: here
    `project` does, after each step, and `initialize` for a fresh weight. A loop without `lcrbnn.project(model)` trains
    weights that are not centred. The gradient carries the released code's factor for SGD, about n mean |w| for a filter
    of n weights (13 to 28 at the start of a ResNet-20): its rate there is 0.01. The further 1e9 for Adam only outweighs
    Adam's epsilon and is left out.
    """

    def __init__(self, weight: Tensor) -> None:
        """Refuse a layer whose weights would all be centred away."""
        super().__init__(weight)
        if weight.shape[1] < 2:
            raise InputError(
                f"xnor and bwn centre weights over input channels, and a weight of shape {tuple(weight.shape)} has one"
            )

    def forward(self, weight: Tensor) -> Binary:
        """Signs and a scale a filter."""
        alpha = mean_magnitude(weight.detach())
        inverse = per_filter(1 / alpha.clamp_min(1e-12), weight)
        return Binary(ops.surrogate_sign(weight, _xnor_slope, inverse), per_output(alpha, weight))

    def initialize(self, weight: Tensor) -> None:
        """Centre and clamp a fresh weight."""
        self.project(weight)

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Centre over input channels and clamp to [-1, 1], in place."""
        weight.sub_(weight.mean(1, keepdim=True)).clamp_(-1, 1)


class XnorActivation(ActivationBinarizer):
    """sign(x), slope 1 where |x| < 1."""

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(x, ops.clip_open))
