"""RAD has plain signs, and a loss for the distribution of the activations (Ding et al. 2019, "BNN-DL")."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lcrbnn.errors import check_number
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import BinaryTensor
from lcrbnn.nn.methods.bnn import BnnActivation, BnnWeight

LOSS_END_PROGRESS = 60 / 65  # training progress (0 to 1) from which on the weight of the loss is 0


def loss_weight_schedule(progress: float, penalty: float) -> float:
    """Return the weight of the loss, which is 0 in the last part of training."""
    return penalty if progress < LOSS_END_PROGRESS else 0.0


def distribution_loss(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return L1 + L2 for the mean m and the standard deviation s of each channel.

    L1 = mean max(0, min(2 - m - s, 2 + m - s))^2 + mean max(0, s - 4)^2, and L2 = mean max(0, m^2 - s^2). They are
    meant to reduce saturation, gradient mismatch and degeneration (signs that are all equal).
    """
    m, s = mean, deviation
    l1 = torch.minimum(2 - m - s, 2 + m - s).clamp_min(0).square().mean() + (s - 4).clamp_min(0).square().mean()
    return l1 + (m.square() - s.square()).clamp_min(0).mean()


class RadWeight(BnnWeight):
    """Returns sign(w) with the straight-through gradient, as in BNN.

    Latent weights are clamped to [-1, 1], as in RAD's code.
    """

    def __init__(self, weight: Tensor, *, limit: float | None = 1.0) -> None:
        """Set the limit of the latent weight (default: 1)."""
        super().__init__(weight, limit=limit)


class RadActivation(BnnActivation):
    """Returns sign(x) as in BNN. In the first 60/65 of training, a loss acts on the distribution of x.

    Each batch adds `penalty` times the distribution loss, averaged over layers. The published value 2 is meant for the
    output of a batch norm before the sign (the published code uses running means over all batches). In most ResNets of
    this package, a hardtanh comes before the sign. Then the deviation of a channel cannot exceed 1, so the loss can
    never reach 0. It pushes the activations to -1 and 1, where the hardtanh has no gradient. The networks without a
    hardtanh, `resnet20-double-bare` and `resnet18-bare`, have signs and slopes as published, and an unclipped skip
    connection.
    """

    averages_extra_loss = True

    def __init__(self, channels: int, *, penalty: float = 2.0) -> None:
        """Set the weight of the loss, which is 0 in the last part of training."""
        super().__init__(channels)
        check_number(penalty, "the penalty of rad", low=0)
        self.strength = Schedule(partial(loss_weight_schedule, penalty=penalty))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs. In training, also record the loss of this batch."""
        if self.training:
            axes = [axis for axis in range(x.dim()) if axis != self.channel_axis % x.dim()]
            deviation, mean = torch.std_mean(x.float() if x.dtype.itemsize < 4 else x, dim=axes, correction=0)
            self.record_extra_loss(self.strength.value * distribution_loss(mean, deviation))
        return super().forward(x)
