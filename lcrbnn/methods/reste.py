"""ReSTE: a power function as the estimator, rectified at both ends (Wu et al. 2023)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer

NEAR, FAR = 0.1, 1.5  # inside, the slope is that of the chord; outside, 0


def power_slope(x: Tensor, o: Tensor | None, q: Tensor | None) -> Tensor:
    """(1/o) |x|^((1-o)/o) where 0.1 < |x| <= 1.5; 0.1^(1/o) / 0.1 where |x| <= 0.1; 0 beyond."""
    assert o is not None
    size = x.abs()
    slope = size.clamp_min(NEAR) ** ((1 - o) / o) / o
    slope = torch.where(size <= NEAR, NEAR ** (1 / o) / NEAR, slope)
    return torch.where(size <= FAR, slope, torch.zeros_like(slope)).to(x.dtype)


def power(progress: float, end: float) -> float:
    """The o of the power function: from 1 to its end along a quarter of a cosine, slowly at first."""
    return 1 + (end - 1) * (1 - math.cos(math.pi / 2 * progress))


def _power(o_end: float) -> Schedule:
    number(o_end, "o_end of reste", low=1)
    return Schedule(partial(power, end=o_end))


class ResteWeight(WeightBinarizer):
    """E sign(w), E = mean |w| of the whole layer, with its gradient; slope of the sign by the power function.

    o goes from 1 (straight-through, clipped) to `o_end` along a quarter of a cosine, as in the released code.
    """

    def __init__(self, weight: Tensor, *, o_end: float = 3.0) -> None:
        """Take the end of the power's schedule."""
        super().__init__(weight)
        self.power = _power(o_end)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and one scale for all filters."""
        return Binary(ops.surrogate_sign(weight, power_slope, self.power.value), weight.abs().mean())


class ResteActivation(ActivationBinarizer):
    """sign(x), slope by the power function. Its order of layers, ReLU before batch norm, belongs to the network."""

    def __init__(self, channels: int, *, o_end: float = 3.0) -> None:
        """Take the end of the power's schedule."""
        super().__init__(channels)
        self.power = _power(o_end)

    def forward(self, x: Tensor) -> Binary:
        """Signs without a scale."""
        return Binary(ops.surrogate_sign(x, power_slope, self.power.value))
