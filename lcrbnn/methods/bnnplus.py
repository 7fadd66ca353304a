"""BNN+: the slope of a swish, and weights that a regulariser pulls to two levels (Darabi et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer


def swish_slope(x: Tensor, beta: Tensor | None, q: Tensor | None) -> Tensor:
    """d SwishSign / dx = b (2 - b x tanh(b x / 2)) / (1 + cosh(b x)): negative far out, unlike any other slope here."""
    assert beta is not None
    y = (beta * x).abs()
    e = torch.exp(-y)  # 1 / (1 + cosh y) = 2 e / (1 + e)^2, and tanh(y / 2) = (1 - e) / (1 + e): neither overflows
    return beta * (2 - y * (1 - e) / (1 + e)) * 2 * e / (1 + e).square()


class BnnPlusWeight(WeightBinarizer):
    """alpha sign(w), alpha learned a layer from mean |w|; slope SwishSign's; a penalty that draws |w| to alpha.

    `power` 1 is the paper's R1 = sum |alpha - |w||, 2 its R2 = sum (alpha - |w|)^2; `penalty` weighs it. There is no
    public code: beta = 5 is the lower end of the paper's range, 1e-6 our choice (the sums run over up to millions of
    weights), alpha, which the regulariser learns, is taken as the layer's scale too, and starts at the mean |w| of the
    weight that the network starts from.
    """

    beta: Tensor

    def __init__(self, weight: Tensor, *, beta: float = 5.0, power: int = 1, penalty: float = 1e-6) -> None:
        """Start alpha at the mean |w| of the layer."""
        super().__init__(weight)
        number(beta, "beta of bnn+", low=1e-3)
        number(power, "the power of bnn+'s regulariser", low=1, high=2, whole=True)
        number(penalty, "the penalty of bnn+", low=0)
        self.power, self.strength = power, penalty
        self.alpha = nn.Parameter(weight.detach().abs().mean())
        self.register_buffer("beta", torch.tensor(beta))

    def initialize(self, weight: Tensor) -> None:
        """Start alpha at the mean |w| of the start that a network gave the weight."""
        self.alpha.copy_(weight.abs().mean())

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the layer's scale."""
        return Binary(ops.surrogate_sign(weight, swish_slope, self.beta), self.alpha)

    def penalty(self, weight: Tensor) -> Tensor:
        """R1 or R2, weighted."""
        apart = (self.alpha - weight.abs()).abs()
        return self.strength * (apart if self.power == 1 else apart.square()).sum()


class BnnPlusActivation(ActivationBinarizer):
    """sign(x), slope SwishSign's."""

    beta: Tensor

    def __init__(self, channels: int, *, beta: float = 5.0) -> None:
        """Take beta."""
        super().__init__(channels)
        number(beta, "beta of bnn+", low=1e-3)
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(x, swish_slope, self.beta))
