"""BNN+ has the slope of a swish function, and a penalty that moves weights to two levels (Darabi et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer


def swish_slope(x: Tensor, beta: Tensor | None, q: Tensor | None) -> Tensor:
    """Return the derivative of SwishSign, b (2 - b x tanh(b x / 2)) / (1 + cosh(b x)).

    The value is negative for large |x|, unlike that of all other slopes in this package.
    """
    assert beta is not None
    y = (beta * x).abs()
    # With e = exp(-y): 1 / (1 + cosh y) = 2 e / (1 + e)^2 and tanh(y / 2) = (1 - e) / (1 + e). These forms do not
    # overflow.
    e = torch.exp(-y)
    return beta * (2 - y * (1 - e) / (1 + e)) * 2 * e / (1 + e).square()


class BnnPlusWeight(WeightBinarizer):
    """Returns alpha sign(w) with the slope of SwishSign, alpha learned per layer. A penalty moves |w| towards alpha.

    With `power` 1 the penalty is R1 = sum |alpha - |w|| of the paper, with 2 it is R2 = sum (alpha - |w|)^2. The option
    `penalty` is its weight. There is no public code. beta = 5 is the lower end of the range in the paper. 1e-6 is a
    choice of this package, because the sums have up to millions of terms. alpha is learned by the penalty and also used
    as the scale of the layer. It starts at the mean |w| of the initial weight.
    """

    beta: Tensor

    def __init__(self, weight: Tensor, *, beta: float = 5.0, power: int = 1, penalty: float = 1e-6) -> None:
        """Create alpha, which starts at the mean |w| of the layer."""
        super().__init__(weight)
        check_number(beta, "beta of bnn+", low=1e-3)
        check_number(power, "the power of bnn+'s regularizer", low=1, high=2, integer=True)
        check_number(penalty, "the penalty of bnn+", low=0)
        self.power, self.penalty_weight = power, penalty
        self.alpha = nn.Parameter(weight.detach().abs().mean())
        self.register_buffer("beta", torch.tensor(beta))

    def initialize(self, weight: Tensor) -> None:
        """Set alpha to the mean |w| of the weight that the network has initialized."""
        self.alpha.copy_(weight.abs().mean())

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one scale for the layer."""
        return BinaryTensor(ops.surrogate_sign(weight, swish_slope, self.beta), self.alpha)

    def extra_loss(self, weight: Tensor) -> Tensor:
        """Return R1 or R2, multiplied by the weight of the penalty."""
        distance = (self.alpha - weight.abs()).abs()
        return self.penalty_weight * (distance if self.power == 1 else distance.square()).sum()


class BnnPlusActivation(ActivationBinarizer):
    """Returns sign(x) with the slope of SwishSign."""

    beta: Tensor

    def __init__(self, channels: int, *, beta: float = 5.0) -> None:
        """Set the sharpness beta of SwishSign."""
        super().__init__(channels)
        check_number(beta, "beta of bnn+", low=1e-3)
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, swish_slope, self.beta))
