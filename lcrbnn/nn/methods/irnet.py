"""IR-Net has standardized weights, power-of-two scales and gradients that become sharper (Qin et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Annealing
from lcrbnn.nn.methods.binarizer import (
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    mean_magnitude,
    standardize_filters,
)


class IrnetWeight(WeightBinarizer):
    """Returns 2^s sign(w') with w' = (w - mean) / std of the filter. 2^s is the power of two nearest to mean |w'|.

    2^s has no gradient. For any bell-shaped filter, mean |w'| is about 0.8. So the scale is almost always 1.
    """

    def __init__(self, weight: Tensor, *, t_min: float = 1e-3, t_max: float = 1e1) -> None:
        """Set the first and last temperature of the schedule."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the standardized weight."""
        return standardize_filters(weight)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one power of two per filter."""
        balanced = self.pre_sign_weight(weight)
        power_of_two = torch.exp2(torch.round(torch.log2(mean_magnitude(balanced.detach()))))
        signs = ops.surrogate_sign(balanced, ops.tanh_slope, self.annealing.t, self.annealing.k)
        return BinaryTensor(signs, broadcast_over_output(power_of_two, weight))


class IrnetActivation(ActivationBinarizer):
    """Returns sign(x) with slope k t (1 - tanh(t x)^2)."""

    def __init__(self, channels: int, *, t_min: float = 1e-3, t_max: float = 1e1) -> None:
        """Set the first and last temperature of the schedule."""
        super().__init__(channels)
        self.annealing = Annealing(t_min, t_max)

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, ops.tanh_slope, self.annealing.t, self.annealing.k))
