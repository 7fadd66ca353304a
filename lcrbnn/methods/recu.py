"""ReCU: weights in the tails are brought back to where their sign can still change (Xu et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import (
    FLOOR,
    ActivationBinarizer,
    Binary,
    WeightBinarizer,
    per_output,
    sample_deviation,
    standardize_filters,
)

FIRST, LAST = 0.85, 0.99  # tau at the start and at the end


def tau(progress: float) -> float:
    """From 0.85 to 0.99 along e^progress, as in the released code."""
    return FIRST + (LAST - FIRST) * math.expm1(progress) / math.expm1(1)


class RecuWeight(WeightBinarizer):
    """alpha sign(w'), w' the standardised filter of variance 8, clamped to +-Q; alpha learned a filter from U(0, 1).

    Q = -E|w'| ln(2 - 2 tau) is the quantile tau of a Laplace distribution, one for the layer, without gradient. The
    gradient of the sign is the identity, then 0 where the clamp cut, then that of the standardisation.
    """

    def __init__(self, weight: Tensor) -> None:
        """Draw alpha."""
        super().__init__(weight)
        self.alpha = nn.Parameter(torch.rand(weight.shape[0]))
        self.tau = Schedule(tau)

    def latent(self, weight: Tensor) -> Tensor:
        """The standardised and clamped weight."""
        wide = standardize_filters(weight, FLOOR) * math.sqrt(8)
        bound = wide.detach().abs().mean() * -torch.log(2 - 2 * self.tau.value)
        return torch.minimum(torch.maximum(wide, -bound), bound)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the learned scale."""
        return Binary(ops.surrogate_sign(self.latent(weight), ops.straight), per_output(self.alpha, weight))


class RecuActivation(ActivationBinarizer):
    """sign(x), slope 2 - 2|x'| where |x'| < 1, x' = x over the deviation of its sample: in training only.

    The deviation leaves the sign as it is and sets the width of the slope; it is part of the graph. With `shift`, which
    ReCU has not, x is first moved by a learned number a channel, from 0: ReActNet's thresholds.
    """

    def __init__(self, channels: int, *, shift: bool = False) -> None:
        """Say whether thresholds are learned."""
        super().__init__(channels)
        if not isinstance(shift, bool):
            raise InputError(f"the shift of recu is true or false; got {shift!r}")
        self.shift = nn.Parameter(torch.zeros(channels)) if shift else None

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        moved = x if self.shift is None else self.shifted(x, self.shift)
        even = moved / sample_deviation(moved) if self.training else moved
        return Binary(ops.surrogate_sign(even, ops.triangle))
