"""BNN+: the slope of a swish, and a regularizer that moves weights to two levels (Darabi et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer


def swish_slope(x: Tensor, beta: Tensor | None, q: Tensor | None) -> Tensor:
    """Return d SwishSign / dx = b (2 - b x tanh(b x / 2)) / (1 + cosh(b x)).

    It is negative for large |x|, unlike all other slopes here.
    """
    assert beta is not None
    y = (beta * x).abs()
    # With e = exp(-y): 1 / (1 + cosh y) = 2 e / (1 + e)^2 and tanh(y / 2) = (1 - e) / (1 + e). Neither overflows.
    e = torch.exp(-y)
    return beta * (2 - y * (1 - e) / (1 + e)) * 2 * e / (1 + e).square()


class BnnPlusWeight(WeightBinarizer):
    """alpha sign(w) with the slope of SwishSign, alpha learned per layer, and a penalty that moves |w| towards alpha.

    `power` 1 is the paper's R1 = sum |alpha - |w||, and 2 is its R2 = sum (alpha - |w|)^2. `penalty` is the weight of
    the penalty. There is no public code. beta = 5 is the lower end of the paper's range. 1e-6 is a choice of this
    package, because the sums have up to millions of terms. alpha, which the regularizer learns, is also used as the
    scale of the layer. It starts at the mean |w| of the initial weight.
    """

    beta: Tensor

    def __init__(self, weight: Tensor, *, beta: float = 5.0, power: int = 1, penalty: float = 1e-6) -> None:
        """Start alpha at the mean |w| of the layer."""
        super().__init__(weight)
        check_number(beta, "beta of bnn+", low=1e-3)
        check_number(power, "the power of bnn+'s regularizer", low=1, high=2, integer=True)
        check_number(penalty, "the penalty of bnn+", low=0)
        self.power, self.penalty_weight = power, penalty
        self.alpha = nn.Parameter(weight.detach().abs().mean())
        self.register_buffer("beta", torch.tensor(beta))

    def initialize(self, weight: Tensor) -> None:
        """Start alpha at the mean |w| of the weight that the network has initialized."""
        self.alpha.copy_(weight.abs().mean())

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and the scale of the layer."""
        return BinaryTensor(ops.surrogate_sign(weight, swish_slope, self.beta), self.alpha)

    def extra_loss(self, weight: Tensor) -> Tensor:
        """Return R1 or R2 times the penalty weight."""
        distance = (self.alpha - weight.abs()).abs()
        return self.penalty_weight * (distance if self.power == 1 else distance.square()).sum()


class BnnPlusActivation(ActivationBinarizer):
    """sign(x) with the slope of SwishSign."""

    beta: Tensor

    def __init__(self, channels: int, *, beta: float = 5.0) -> None:
        """Set beta."""
        super().__init__(channels)
        check_number(beta, "beta of bnn+", low=1e-3)
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, swish_slope, self.beta))
