"""ReSTE replaces the gradient of the sign by that of a power function with bounded slope (Wu et al. 2023)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer

# Two limits of |x|. Below the first limit, the slope is that of a straight line from 0 to the curve. Above the second
# limit, the slope is 0.
CHORD_LIMIT, ZERO_SLOPE_LIMIT = 0.1, 1.5


def power_slope(x: Tensor, o: Tensor | None, q: Tensor | None) -> Tensor:
    """Return (1/o) |x|^((1-o)/o) where 0.1 < |x| <= 1.5, 0.1^(1/o) / 0.1 for smaller |x|, and 0 for larger |x|."""
    assert o is not None
    size = x.abs()
    slope = size.clamp_min(CHORD_LIMIT) ** ((1 - o) / o) / o
    slope = torch.where(size <= CHORD_LIMIT, CHORD_LIMIT ** (1 / o) / CHORD_LIMIT, slope)
    return torch.where(size <= ZERO_SLOPE_LIMIT, slope, torch.zeros_like(slope)).to(x.dtype)


def exponent_schedule(progress: float, end: float) -> float:
    """Return the exponent o of the power function.

    It rises from 1 to `end` along a quarter of a cosine, slowly at first.
    """
    return 1 + (end - 1) * (1 - math.cos(math.pi / 2 * progress))


def _make_exponent_schedule(o_end: float) -> Schedule:
    check_number(o_end, "o_end of reste", low=1)
    return Schedule(partial(exponent_schedule, end=o_end))


class ResteWeight(WeightBinarizer):
    """Returns E sign(w) with the slope of a power function. E is the mean |w| of the whole layer, with gradient.

    The exponent o rises from 1 (clipped straight-through estimator) to `o_end` along a quarter of a cosine, as in the
    released code.
    """

    def __init__(self, weight: Tensor, *, o_end: float = 3.0) -> None:
        """Set the final value of o."""
        super().__init__(weight)
        self.power = _make_exponent_schedule(o_end)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one scale for all filters."""
        return BinaryTensor(ops.surrogate_sign(weight, power_slope, self.power.value), weight.abs().mean())


class ResteActivation(ActivationBinarizer):
    """Returns sign(x) with the slope of a power function. In ReSTE, the network has ReLU before batch norm."""

    def __init__(self, channels: int, *, o_end: float = 3.0) -> None:
        """Set the final value of o."""
        super().__init__(channels)
        self.power = _make_exponent_schedule(o_end)

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs without a scale."""
        return BinaryTensor(ops.surrogate_sign(x, power_slope, self.power.value))
