"""ReCU clamps large weights to a range in which the sign of a weight can still change (Xu et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import (
    VARIANCE_EPSILON,
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    sample_std,
    standardize_filters,
)

INITIAL_TAU, FINAL_TAU = 0.85, 0.99


def tau_schedule(progress: float) -> float:
    """Return tau, which rises from 0.85 to 0.99 in training like e^progress, as in the released code."""
    return INITIAL_TAU + (FINAL_TAU - INITIAL_TAU) * math.expm1(progress) / math.expm1(1)


class RecuWeight(WeightBinarizer):
    """Returns alpha sign(w'), where w' is the standardized filter with variance 8, clamped to [-Q, Q].

    alpha is learned per filter and starts from U(0, 1). Q = -E|w'| ln(2 - 2 tau) is one number per layer without
    gradient: the tau-quantile of a Laplace distribution. The gradient of the sign is the identity. It is then set to 0
    where w' is clamped, and passes through the standardization.
    """

    def __init__(self, weight: Tensor) -> None:
        """Draw the initial scale alpha of each filter."""
        super().__init__(weight)
        self.alpha = nn.Parameter(torch.rand(weight.shape[0]))
        self.tau = Schedule(tau_schedule)

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the standardized and clamped weight."""
        standardized = standardize_filters(weight, VARIANCE_EPSILON) * math.sqrt(8)
        bound = standardized.detach().abs().mean() * -torch.log(2 - 2 * self.tau.value)
        return torch.minimum(torch.maximum(standardized, -bound), bound)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and the learned scale."""
        return BinaryTensor(
            ops.surrogate_sign(self.pre_sign_weight(weight), ops.identity_slope),
            broadcast_over_output(self.alpha, weight),
        )


class RecuActivation(ActivationBinarizer):
    """Returns sign(x) with slope 2 - 2|x'| where |x'| < 1. In training, x' is x divided by the deviation of its sample.

    The division does not change the sign. It determines the width of the slope, and the deviation has a gradient too.
    With the option `shift`, which ReCU does not have, a learned number per channel is added to x first. It starts at 0.
    This corresponds to the thresholds of ReActNet.
    """

    def __init__(self, channels: int, *, shift: bool = False) -> None:
        """Create the learned shifts, if `shift` is set."""
        super().__init__(channels)
        if not isinstance(shift, bool):
            raise InputError(f"the shift of recu must be true or false; got {shift!r}")
        self.shift = nn.Parameter(torch.zeros(channels)) if shift else None
        self.learns_threshold = shift

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        shifted = x if self.shift is None else self.add_channel_shift(x, self.shift)
        scaled = shifted / sample_std(shifted) if self.training else shifted
        return BinaryTensor(ops.surrogate_sign(scaled, ops.approx_sign_slope))
