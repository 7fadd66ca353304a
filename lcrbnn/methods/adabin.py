"""AdaBin: binary sets that adapt, {b - a, b + a} in place of {-1, +1} (Tu et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.methods.annealing import Annealing
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer, per_output, standardize_filters


class AdabinWeight(WeightBinarizer):
    """a sign((w - b) / a) + b, b the mean and a the standard deviation of the filter, all inside the graph.

    The variance of n weights is their sum of squares over n, as in the released code, not over n - 1. The sign's slope
    is IR-Net's, from t_min to t_max. An offset of weights adds the sum of each window's inputs, which the format of
    exported networks does not have.
    """

    def __init__(self, weight: Tensor, *, t_min: float = 1e-3, t_max: float = 1e1) -> None:
        """Take the ends of the temperature's schedule."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)

    def latent(self, weight: Tensor) -> Tensor:
        """The standardised weight."""
        return standardize_filters(weight, correction=0)

    def forward(self, weight: Tensor) -> Binary:
        """Signs, deviations and means."""
        spread, mean = torch.std_mean(weight, dim=tuple(range(1, weight.dim())), correction=0)
        signs = ops.surrogate_sign(self.latent(weight), ops.tanh_slope, self.annealing.t, self.annealing.k)
        return Binary(signs, per_output(spread.clamp_min(1e-5), weight), per_output(mean, weight))


class AdabinActivation(ActivationBinarizer):
    """a (sign(x') + b), x' = (x - b) / a, a and b learned a layer from 1 and 0; slope 2 - 2|x'| where |x'| < 1.

    So the released code, whose schedule is for weights only; the paper has a sign((x - b) / a) + b. Its Maxout
    activation belongs to the network: `resnet20-double-maxout`, `resnet18-double-maxout`.
    """

    real_border = True

    def __init__(self, channels: int) -> None:
        """Start from the signs themselves."""
        super().__init__(channels)
        self.scale = nn.Parameter(torch.ones(()))
        self.center = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Binary:
        """Signs, the learned scale and offset."""
        signs = ops.surrogate_sign((x - self.center) / self.scale, ops.triangle)
        return Binary(signs, self.scale, self.scale * self.center)
