"""IR-Net: standardised weights, a power-of-two scale, gradients that sharpen over training (Qin et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.methods.annealing import Annealing
from lcrbnn.methods.contract import (
    ActivationBinarizer,
    Binary,
    WeightBinarizer,
    mean_magnitude,
    per_output,
    standardize_filters,
)


class IrnetWeight(WeightBinarizer):
    """2^s sign(w'), w' = (w - mean) / std of the filter, 2^s = the power of two nearest mean |w'|, without gradient.

    mean |w'| is about 0.8 for any bell-shaped filter, so the scale is almost always 1.
    """

    def __init__(self, weight: Tensor, *, t_min: float = 1e-3, t_max: float = 1e1) -> None:
        """Take the ends of the temperature's schedule."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)

    def latent(self, weight: Tensor) -> Tensor:
        """The standardised weight."""
        return standardize_filters(weight)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and a power of two a filter."""
        balanced = self.latent(weight)
        shift = torch.exp2(torch.round(torch.log2(mean_magnitude(balanced.detach()))))
        signs = ops.surrogate_sign(balanced, ops.tanh_slope, self.annealing.t, self.annealing.k)
        return Binary(signs, per_output(shift, weight))


class IrnetActivation(ActivationBinarizer):
    """sign(x), slope k t (1 - tanh(t x)^2)."""

    def __init__(self, channels: int, *, t_min: float = 1e-3, t_max: float = 1e1) -> None:
        """Take the ends of the temperature's schedule."""
        super().__init__(channels)
        self.annealing = Annealing(t_min, t_max)

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(x, ops.tanh_slope, self.annealing.t, self.annealing.k))
