"""DSQ: differentiable soft quantisation, a tanh that grows into the sign (Gong et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer

BOUND = 3.0  # of the mean |w| of a layer: where its bound starts
ALPHA = 0.2  # how far the soft curve stays from its levels, at the start
LOW, HIGH = 1e-3, 0.5  # where alpha is kept: at 0 the curve is the sign itself, at 1 a straight line


class SoftSign(nn.Module):
    """The phi of DsqWeight, with an alpha and a bound of its own."""

    def __init__(self, bound: Tensor) -> None:
        """Start with this bound."""
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(ALPHA))
        self.bound = nn.Parameter(bound)

    def forward(self, x: Tensor, shared: int) -> Binary:
        """Signs with the gradient of phi, and the bound as scale."""
        alpha, bound = (ops.slowed(p, shared) for p in (self.alpha, self.bound))
        alpha, bound = alpha.clamp(LOW, HIGH), bound.abs().clamp_min(1e-6)
        inside = torch.clamp(x, -bound, bound)
        soft = torch.tanh(torch.log(2 / alpha - 1) / (2 * bound) * inside) / (1 - alpha)
        return Binary(ops.dressed_sign(x, soft), bound)


class DsqWeight(WeightBinarizer):
    """u sign(w), slope that of phi(x) = s tanh(k x) on [-u, u], s = 1 / (1 - alpha), k = ln(2 / alpha - 1) / (2 u).

    phi is -1 and 1 at the ends. alpha, from 0.2, and the bound u, from three times the layer's mean |w|, are learned,
    through phi too. The paper's interval [l, u] is symmetric here, which one bit needs: with its middle at 0 the two
    levels are -u and u, and the sign's threshold 0. Only unofficial code exists. alpha is kept between 0.001 and 0.5,
    and the gradients of alpha and u are divided by the root of how many numbers share them (`ops.slowed`), ours.
    """

    training_only = ("soft.alpha",)

    def __init__(self, weight: Tensor) -> None:
        """A soft sign a layer."""
        super().__init__(weight)
        self.soft = SoftSign(BOUND * weight.detach().abs().mean())

    def initialize(self, weight: Tensor) -> None:
        """Start the bound from the start that a network gave the weight."""
        self.soft.bound.copy_(BOUND * weight.abs().mean())

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the learned bound."""
        return self.soft(weight, weight.numel())


class DsqActivation(ActivationBinarizer):
    """u sign(x), slope that of phi, as of the weights; u starts at 1, the bound of a hardtanh."""

    real_border = True
    training_only = ("soft.alpha",)

    def __init__(self, channels: int) -> None:
        """A soft sign a layer."""
        super().__init__(channels)
        self.soft = SoftSign(torch.ones(()))

    def forward(self, x: Tensor) -> Binary:
        """Signs and the learned bound."""
        return self.soft(x, x[0].numel())
