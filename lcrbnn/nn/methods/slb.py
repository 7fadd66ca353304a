"""SLB: searching for low-bit weights, an expectation that becomes a sign during training (Yang et al. 2020)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import BinaryTensor, WeightBinarizer
from lcrbnn.nn.methods.bnn import BnnActivation

HARDENING_START_PROGRESS, HARDENING_END_PROGRESS = 0.4, 0.9  # training progress in which the temperature changes
GROWTH = 1.03**250  # total factor of the inverse temperature: 1.03 per epoch over half of the published 500 epochs
GROWTH_WEIGHTS_ONLY = 1.04**250  # the same for real activations


def hard_sign_schedule(progress: float) -> float:
    """Return 1 once weights are signs in training too, and 0 before."""
    return float(progress >= HARDENING_END_PROGRESS)


def hardness_schedule(progress: float, growth: float) -> float:
    """Return the inverse temperature: 1 at first, then `growth` times as large over the hardening phase.

    It is multiplied by the same factor at each epoch.
    """
    return growth ** (
        (min(max(progress, HARDENING_START_PROGRESS), HARDENING_END_PROGRESS) - HARDENING_START_PROGRESS)
        / (HARDENING_END_PROGRESS - HARDENING_START_PROGRESS)
    )


class SlbWeight(WeightBinarizer):
    """In training, the mean of a softmax over {-1, +1}. In evaluation, the more likely level.

    A softmax over two levels has one degree of freedom, the latent weight here, and its mean is tanh(t w). t is the
    inverse temperature and starts at 1. The published schedule multiplies t by 1.03 at each epoch (1.04 with real
    activations) from 0.4 E to 0.9 E, with E = 500. A shorter run uses the same total factor (`growth`) in fewer steps,
    because otherwise its softmax would never become sharp. The authors do the same in their settings for 100 epochs:
    1.2 over 40 of them. From 0.9 E on, weights are signs in training too and receive no gradient, as in the authors'
    later code. The remaining parameters adapt to the signs, and running statistics become those of the signs. This
    replaces the second batch norm of the paper and its calibration after each epoch. As a consequence, an evaluation
    before 0.9 E combines signs with the statistics of expectations and is not meaningful. The code for CIFAR-10 is not
    public. The initial values of the softmax are a choice of this package: the initial weights of the network.
    """

    def __init__(self, weight: Tensor, *, growth: float = GROWTH) -> None:
        """Start at t = 1."""
        super().__init__(weight)
        check_number(growth, "the growth of slb", low=1)
        self.hardness = Schedule(partial(hardness_schedule, growth=growth))
        self.hard = Schedule(hard_sign_schedule)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return expectations in training, and signs in evaluation."""
        mean = torch.tanh(self.hardness.value * weight)
        if self.training:
            training_weight = torch.where(self.hard.value > 0, ops.sign(weight.detach()), mean)
            return BinaryTensor(
                training_weight, non_binary_reason="in training its weights are expectations, between -1 and 1"
            )
        return BinaryTensor(ops.soft_sign(weight, mean))


class SlbActivation(BnnActivation):
    """The same as BNN: sign(x) with slope 1 where |x| <= 1.

    The released settings for ResNets mention the clipping of PACT, without code. The ResNet-20 of the paper for
    CIFAR-10 also has a PReLU between convolution and batch norm, which no network of this package has.
    """
