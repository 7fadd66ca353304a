"""IE-Net takes two shifted signs per activation, and multiplies both by one binary weight (Ding et al. 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Annealing
from lcrbnn.nn.methods.binarizer import (
    VARIANCE_EPSILON,
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    mean_magnitude,
    sample_std,
    standardize_filters,
)

INITIAL_SECOND_SCALE = 5e-4  # initial scale of the second sign


def iee_slope(x: Tensor, t: Tensor | None, k: Tensor | None) -> Tensor:
    """Return the slope of the information-enhanced estimator: k max(0, sqrt(3) t - 1.5 t^2 |x|)."""
    assert t is not None
    assert k is not None
    return k * (math.sqrt(3) * t - 1.5 * t * t * x.abs()).clamp_min(0)


class IenetWeight(WeightBinarizer):
    """Returns alpha sign(w'), where w' is the standardized filter. alpha is learned per filter and starts at mean |w|.

    Standardization, alpha and the range of the temperature are those of RBNN, whose training code the IE-Net code
    extends.
    """

    def __init__(self, weight: Tensor, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Set the first and last temperature of the schedule."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)
        self.alpha = nn.Parameter(mean_magnitude(weight.detach()).clone())

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the standardized weight."""
        return standardize_filters(weight, VARIANCE_EPSILON)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and the learned scale."""
        signs = ops.surrogate_sign(self.pre_sign_weight(weight), iee_slope, self.annealing.t, self.annealing.k)
        return BinaryTensor(signs, broadcast_over_output(self.alpha, weight))


class IenetActivation(ActivationBinarizer):
    """Returns sign(x + b) + g sign(x + c). The shifts b and c are learned per channel, the scale g per layer.

    b and c start at 0, and g starts at 0.0005. The slope has k = 1 and t >= 1. In training, both shifted inputs are
    divided by the standard deviation of their sample. This changes the width of the slope but no sign. The released
    code has one g per output channel, drawn from U(0, 0.001). Here g is one number per layer, because the factor of an
    activation cannot depend on the output channel. The number of bit operations doubles: a layer is
    exported as two binary products.
    """

    bits = 2
    has_real_padding = True
    learns_threshold = True

    def __init__(self, channels: int, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Set the first and last temperature of the schedule, and create b, c and g."""
        super().__init__(channels)
        self.annealing = Annealing(t_min, t_max)
        self.first, self.second = (nn.Parameter(torch.zeros(channels)) for _ in range(2))
        self.factor = nn.Parameter(torch.tensor(INITIAL_SECOND_SCALE))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return one base (signs and a scale) for each of the two shifts."""
        t = self.annealing.t.clamp_min(1)
        k = torch.ones_like(t)
        shifted = [self.add_channel_shift(x, shift) for shift in (self.first, self.second)]
        if self.training:
            shifted = [y / sample_std(y) for y in shifted]
        signs = torch.stack([ops.surrogate_sign(y, iee_slope, t, k) for y in shifted])
        scale = torch.stack([torch.ones_like(self.factor), self.factor])
        return BinaryTensor(signs, scale.reshape(-1, *[1] * x.dim()), num_bases=2)
