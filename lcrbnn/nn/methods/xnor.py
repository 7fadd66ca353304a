"""XNOR-Net and BWN multiply the signs of centered weights by their mean magnitude (Rastegari et al. 2016).

The paper also has a spatial scale K for activations. The released code does not have it, so this package does not have
it either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import (
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
)


def _xnor_slope(w: Tensor, inverse_scale: Tensor | None, q: Tensor | None) -> Tensor:
    # The released code multiplies the gradient of alpha * sign(w) by (alpha 1[|w| < 1] + 1/n) (1 - 1/C_in) n. Here the
    # incoming gradient is that of sign(w), which is alpha times larger. So the factor is divided by alpha.
    assert inverse_scale is not None
    inside = (w.abs() < 1).to(w.dtype)
    n, channels = w[0].numel(), w.shape[1]
    return (inside + inverse_scale / n) * ((1 - 1 / channels) * n)


class XnorWeight(WeightBinarizer):
    """Returns alpha sign(w). alpha is the mean |w| of the filter, without gradient. w is kept centered and clamped.

    Before each step, the released code centers the latent weight over input channels and clamps it to [-1, 1]. Here
    `project` does this after each step, and `initialize` does it for a new weight. A training loop must call
    `lcrbnn.project_weights(model)`. Without this call, the weights are not centered.

    As in the released code for SGD, the gradient contains a factor. It is about n mean |w| for a filter of n weights
    (13 to 28 initially in a ResNet-20). The released learning rate is 0.01. For Adam, the released code has an
    additional factor 1e9. It is left out, because its only effect is that the epsilon of Adam becomes negligible.
    """

    def __init__(self, weight: Tensor) -> None:
        """Check the shape. Raise InputError if centering would make all weights of the layer 0."""
        super().__init__(weight)
        if weight.shape[1] < 2:
            raise InputError(
                "xnor and bwn center weights over input channels and need at least 2 of them; "
                f"got a weight of shape {tuple(weight.shape)}"
            )

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one scale per filter."""
        alpha = mean_magnitude(weight.detach())
        inverse_alpha = broadcast_over_weight(1 / alpha.clamp_min(1e-12), weight)
        return BinaryTensor(
            ops.surrogate_sign(weight, _xnor_slope, inverse_alpha), broadcast_over_output(alpha, weight)
        )

    def initialize(self, weight: Tensor) -> None:
        """Center and clamp a new latent weight."""
        self.project(weight)

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Center the weight over input channels and clamp it to [-1, 1], in place."""
        weight.sub_(weight.mean(1, keepdim=True)).clamp_(-1, 1)


class XnorActivation(ActivationBinarizer):
    """Returns sign(x) with slope 1 where |x| < 1."""

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, ops.open_clip_slope))
