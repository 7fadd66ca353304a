"""AdaBin replaces the values {-1, +1} by the adaptive binary set {b - a, b + a} (Tu et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Annealing
from lcrbnn.nn.methods.binarizer import (
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    standardize_filters,
)


class AdabinWeight(WeightBinarizer):
    """Returns a sign((w - b) / a) + b.

    Here b is the mean and a the standard deviation of the filter, both with gradient. The variance of n weights is
    their sum of squares divided by n, as in the released code, and not by n - 1. The slope of the sign is that of
    IR-Net, from t_min to t_max. Because of the offset b, the output also contains b times the sum of the inputs of each
    window. This is exported as one more binary product.
    """

    def __init__(self, weight: Tensor, *, t_min: float = 1e-3, t_max: float = 1e1) -> None:
        """Set the first and the last temperature of the annealing schedule."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the standardized weight."""
        return standardize_filters(weight, correction=0)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs, and the standard deviations and means as scale and offset."""
        std, mean = torch.std_mean(weight, dim=tuple(range(1, weight.dim())), correction=0)
        signs = ops.surrogate_sign(self.pre_sign_weight(weight), ops.tanh_slope, self.annealing.t, self.annealing.k)
        return BinaryTensor(
            signs, broadcast_over_output(std.clamp_min(1e-5), weight), broadcast_over_output(mean, weight)
        )


class AdabinActivation(ActivationBinarizer):
    """Returns a (sign(x') + b) with x' = (x - b) / a. The slope of the sign is 2 - 2|x'| where |x'| < 1.

    a and b are learned per layer and start at 1 and 0. This follows the released code, which anneals only the weights.
    The paper has a sign((x - b) / a) + b. The Maxout activation of AdaBin is a part of the network:
    `resnet20-double-maxout`, `resnet18-double-maxout`.
    """

    has_real_padding = True
    learns_threshold = True

    def __init__(self, channels: int) -> None:
        """Start with a = 1 and b = 0, which gives the plain sign."""
        super().__init__(channels)
        self.scale = nn.Parameter(torch.ones(()))
        self.center = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs, the learned scale and the learned offset."""
        signs = ops.surrogate_sign((x - self.center) / self.scale, ops.approx_sign_slope)
        return BinaryTensor(signs, self.scale, self.scale * self.center)
