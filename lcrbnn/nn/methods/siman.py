"""SiMaN sets the larger half of the magnitudes of a filter to +1, and the smaller half to -1 (Lin et al. 2022)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import (
    VARIANCE_EPSILON,
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
    standardize_filters,
    standardize_samples,
)

# Fraction of a layer's magnitudes that is clamped at each end. It decreases to 0 during training.
INITIAL_CUT_FRACTION = 0.15


def cut_schedule(progress: float, initial_fraction: float = INITIAL_CUT_FRACTION) -> float:
    """Return the cut fraction, which decreases linearly from `initial_fraction` to 0."""
    return initial_fraction * (1 - progress)


def quantile(sorted_values: Tensor, fraction: Tensor) -> Tensor:
    """Return the quantile of sorted values at `fraction`.

    In a captured CUDA graph, the fraction may change between replays.
    """
    last_index = sorted_values.shape[0] - 1
    position = (fraction * last_index).clamp(0, last_index)
    lower_index = position.floor().long()
    neighbours = [
        sorted_values.index_select(0, index.reshape(1))[0]
        for index in (lower_index, (lower_index + 1).clamp_max(last_index))
    ]
    return torch.lerp(neighbours[0], neighbours[1], (position - lower_index).to(sorted_values.dtype))


class SimanWeight(WeightBinarizer):
    """Returns alpha sign(|w'| - m), where w' is the standardized filter and m is the median of its |w'|.

    The larger half of the magnitudes becomes +1. The gradient of the sign is the identity. It then passes through the
    absolute value (so a weight moves away from 0 or towards 0, on either side) and through the standardization. m has
    no gradient. alpha is learned per filter, from the initial mean |w|.

    The latent weight is kept centered, and the magnitudes of a layer are clamped at both ends. A fraction `cut` of them
    is clamped at each end: 15 % at first (the released options have 5 % as default), decreasing to 0. The released code
    clamps before each forward pass. Here `project` does it after each step, and `initialize` does it for a new weight.
    In the released code, the weights of binary layers have no weight decay (`weight_decay_parameters = "non-latent"`).
    """

    def __init__(self, weight: Tensor, *, cut: float = INITIAL_CUT_FRACTION) -> None:
        """Create the scale alpha, which starts at the mean |w| of each filter."""
        super().__init__(weight)
        check_number(cut, "the cut of siman", low=0, high=0.5)
        self.alpha = nn.Parameter(mean_magnitude(weight.detach()).clone())
        self.cut = Schedule(partial(cut_schedule, initial_fraction=cut))

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the magnitude of the standardized weight minus its median."""
        magnitude = standardize_filters(weight, VARIANCE_EPSILON).abs()
        n = weight[0].numel()
        median = ops.sort_rows(magnitude.detach().flatten(1))[:, n - n // 2]
        return magnitude - broadcast_over_weight(median, weight)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and the learned scale."""
        return BinaryTensor(
            ops.surrogate_sign(self.pre_sign_weight(weight), ops.identity_slope),
            broadcast_over_output(self.alpha, weight),
        )

    def initialize(self, weight: Tensor) -> None:
        """Center a new weight and clamp its magnitudes."""
        self.project(weight)

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Center each filter and clamp the magnitudes of the layer, both in place."""
        centred = weight - weight.mean(tuple(range(1, weight.dim())), keepdim=True)
        magnitude = centred.abs()
        sorted_magnitudes = magnitude.flatten().sort().values
        low, high = (quantile(sorted_magnitudes, fraction) for fraction in (self.cut.value, 1 - self.cut.value))
        weight.copy_(torch.minimum(torch.maximum(magnitude, low), high) * torch.sign(centred))


class SimanActivation(ActivationBinarizer):
    """Returns the sign of the standardized sample x' (minus its mean, divided by its deviation), also in evaluation.

    The slope is 2 - 2|x'|. The PReLU of SiMaN is a part of the network: `resnet20-double-prelu`,
    `resnet18-double-prelu`.
    """

    num_sample_reductions = 1

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs of the samples, each standardized over all its numbers."""
        return BinaryTensor(ops.surrogate_sign(standardize_samples(x, VARIANCE_EPSILON), ops.approx_sign_slope))
