"""RAD: plain signs, and a loss on the distribution of what is binarised (Ding et al. 2019, "BNN-DL")."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lcrbnn.errors import number
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.bnn import BnnActivation, BnnWeight
from lcrbnn.methods.contract import Binary

UNTIL = 60 / 65  # of training: how long the loss takes part


def strength(progress: float, penalty: float) -> float:
    """The weight of the loss: none in the last part of training."""
    return penalty if progress < UNTIL else 0.0


def distribution_loss(mean: Tensor, deviation: Tensor) -> Tensor:
    """L1 + L2 of each channel's mean m and deviation s: against saturation, gradient mismatch and degeneration.

    L1 = mean max(0, min(2 - m - s, 2 + m - s))^2 + mean max(0, s - 4)^2, and L2 = mean max(0, m^2 - s^2).
    """
    m, s = mean, deviation
    first = torch.minimum(2 - m - s, 2 + m - s).clamp_min(0).square().mean() + (s - 4).clamp_min(0).square().mean()
    return first + (m.square() - s.square()).clamp_min(0).mean()


class RadWeight(BnnWeight):
    """BNN's sign(w), straight-through, with the latent weight clamped to +-1, as in RAD's code."""

    def __init__(self, weight: Tensor, *, limit: float | None = 1.0) -> None:
        """Clamp to 1 unless told otherwise."""
        super().__init__(weight, limit=limit)


class RadActivation(BnnActivation):
    """BNN's sign(x); a batch adds `penalty` times the distribution loss, the mean over layers, in 60/65 of training.

    The published lambda, 2, is for what a batch norm hands to the sign (running statistics there are means over all
    batches). Behind a hardtanh, as in most ResNets of this package, no channel's deviation passes 1 and the loss can
    never be satisfied: it drives the map to -1 and 1, where the hardtanh has no gradient. The networks without one,
    `resnet20-double-bare` and `resnet18-bare`, have signs and slopes as published, and an unclipped skip.
    """

    averaged = True

    def __init__(self, channels: int, *, penalty: float = 2.0) -> None:
        """Take lambda."""
        super().__init__(channels)
        number(penalty, "the penalty of rad", low=0)
        self.strength = Schedule(partial(strength, penalty=penalty))

    def forward(self, x: Tensor) -> Binary:
        """Signs; the loss of this batch is noted."""
        if self.training:
            axes = [axis for axis in range(x.dim()) if axis != self.channel_axis % x.dim()]
            deviation, mean = torch.std_mean(x.float() if x.dtype.itemsize < 4 else x, dim=axes, correction=0)
            self.note(self.strength.value * distribution_loss(mean, deviation))
        return super().forward(x)
