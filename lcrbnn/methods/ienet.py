"""IE-Net: two shifted signs of each activation through one binary weight (Ding et al. 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.methods.annealing import Annealing
from lcrbnn.methods.contract import (
    FLOOR,
    ActivationBinarizer,
    Binary,
    WeightBinarizer,
    mean_magnitude,
    per_output,
    sample_deviation,
    standardize_filters,
)

FACTOR = 5e-4  # where that of the second branch starts


def iee_slope(x: Tensor, t: Tensor | None, k: Tensor | None) -> Tensor:
    """The information-enhanced estimator: k max(0, sqrt(3) t - 1.5 t^2 |x|)."""
    assert t is not None
    assert k is not None
    return k * (math.sqrt(3) * t - 1.5 * t * t * x.abs()).clamp_min(0)


class IenetWeight(WeightBinarizer):
    """alpha sign(w'), w' the standardised filter, alpha learned a filter from the mean |w| of the fresh weight.

    Standardising and alpha are RBNN's, whose trainer its code extends; the ends of the temperature's schedule too.
    """

    def __init__(self, weight: Tensor, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Take the ends of the temperature's schedule."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)
        self.alpha = nn.Parameter(mean_magnitude(weight.detach()).clone())

    def latent(self, weight: Tensor) -> Tensor:
        """The standardised weight."""
        return standardize_filters(weight, FLOOR)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the learned scale."""
        signs = ops.surrogate_sign(self.latent(weight), iee_slope, self.annealing.t, self.annealing.k)
        return Binary(signs, per_output(self.alpha, weight))


class IenetActivation(ActivationBinarizer):
    """sign(x + b) + g sign(x + c), b and c learned a channel from 0, g a layer from 0.0005; slope with k = 1, t >= 1.

    In training both are taken over the deviation of their sample, which sets the width of the slope and no sign. The
    released code has a g for each channel of the output, from U(0, 0.001); here it is one number, since a factor of an
    activation knows no output. Twice the bit operations; two signs an activation cannot be exported as one.
    """

    bits = 2
    real_border = True

    def __init__(self, channels: int, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Take the ends of the temperature's schedule."""
        super().__init__(channels)
        self.annealing = Annealing(t_min, t_max)
        self.first, self.second = (nn.Parameter(torch.zeros(channels)) for _ in range(2))
        self.factor = nn.Parameter(torch.tensor(FACTOR))

    def forward(self, x: Tensor) -> Binary:
        """One base a branch."""
        t = self.annealing.t.clamp_min(1)
        k = torch.ones_like(t)
        shifted = [self.shifted(x, shift) for shift in (self.first, self.second)]
        if self.training:
            shifted = [y / sample_deviation(y) for y in shifted]
        signs = torch.stack([ops.surrogate_sign(y, iee_slope, t, k) for y in shifted])
        scale = torch.stack([torch.ones_like(self.factor), self.factor])
        return Binary(signs, scale.reshape(-1, *[1] * x.dim()), bases=2)
