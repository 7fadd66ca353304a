"""DSQ learns a tanh that approaches the sign: differentiable soft quantization (Gong et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer

INITIAL_BOUND_IN_MEAN_MAGNITUDES = 3.0  # initial bound of a layer, as a multiple of its mean |w|
INITIAL_ALPHA = 0.2  # initial distance between the ends of the soft curve and its levels
# Limits of alpha; at alpha = 0 the curve would be the sign itself, at alpha = 1 a straight line
MIN_ALPHA, MAX_ALPHA = 1e-3, 0.5


class SoftSign(nn.Module):
    """The soft sign phi of DsqWeight, with its own alpha and bound."""

    def __init__(self, bound: Tensor) -> None:
        """Create alpha and the bound, which starts at this value."""
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(INITIAL_ALPHA))
        self.bound = nn.Parameter(bound)

    def forward(self, x: Tensor, num_elements: int) -> BinaryTensor:
        """Return the signs of x and the scale `bound`. The backward pass uses the derivative of phi."""
        alpha, bound = (ops.scale_gradient(p, num_elements) for p in (self.alpha, self.bound))
        alpha, bound = alpha.clamp(MIN_ALPHA, MAX_ALPHA), bound.abs().clamp_min(1e-6)
        clipped = torch.clamp(x, -bound, bound)
        soft = torch.tanh(torch.log(2 / alpha - 1) / (2 * bound) * clipped) / (1 - alpha)
        return BinaryTensor(ops.soft_sign(x, soft), bound)


class DsqWeight(WeightBinarizer):
    """Returns u sign(w). The backward pass uses the derivative of the soft sign phi.

    phi(x) = s tanh(k x) on [-u, u], with s = 1 / (1 - alpha) and k = ln(2 / alpha - 1) / (2 u). So phi is -1 and 1 at
    the ends of the interval. alpha (from 0.2) and the bound u (from three times the layer's mean |w|) are learned. They
    also receive gradients through phi. The paper has an interval [l, u]. Here it is symmetric, because one bit needs
    the levels -u and u and the threshold 0. Only unofficial code exists. Two details are choices of this package: alpha
    is kept between 0.001 and 0.5, and the gradients of alpha and u are divided by the square root of the number of
    elements that share them (`functional.scale_gradient`).
    """

    training_only_parameters = ("soft.alpha",)

    def __init__(self, weight: Tensor) -> None:
        """Create one soft sign for the whole layer."""
        super().__init__(weight)
        self.soft = SoftSign(INITIAL_BOUND_IN_MEAN_MAGNITUDES * weight.detach().abs().mean())

    def initialize(self, weight: Tensor) -> None:
        """Set the bound from the weight that the network has initialized."""
        self.soft.bound.copy_(INITIAL_BOUND_IN_MEAN_MAGNITUDES * weight.abs().mean())

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and the learned bound."""
        return self.soft(weight, weight.numel())


class DsqActivation(ActivationBinarizer):
    """Returns u sign(x) with the slope of phi, as for the weights. u starts at 1, the bound of a hardtanh."""

    has_real_padding = True
    training_only_parameters = ("soft.alpha",)

    def __init__(self, channels: int) -> None:
        """Create one soft sign for the whole layer."""
        super().__init__(channels)
        self.soft = SoftSign(torch.ones(()))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs and the learned bound."""
        return self.soft(x, x[0].numel())
