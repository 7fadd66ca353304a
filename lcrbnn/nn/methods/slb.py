"""SLB uses as weight the mean of a distribution over -1 and +1, which becomes a sign in training (Yang et al. 2020)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import BinaryTensor, WeightBinarizer
from lcrbnn.nn.methods.bnn import BnnActivation

# range of training progress in which the temperature changes
HARDENING_START_PROGRESS, HARDENING_END_PROGRESS = 0.4, 0.9
GROWTH = 1.03**250  # total factor of the inverse temperature: 1.03 per epoch, over half of the 500 epochs in the paper
# Total factor of the inverse temperature with real activations: 1.04 per epoch over 250 epochs
GROWTH_WEIGHTS_ONLY = 1.04**250


def hard_sign_schedule(progress: float) -> float:
    """Return 1 in the last phase, in which weights are signs in training too, and 0 before."""
    return float(progress >= HARDENING_END_PROGRESS)


def hardness_schedule(progress: float, growth: float) -> float:
    """Return the inverse temperature. It starts at 1 and grows to `growth` during the hardening phase.

    At each epoch of that phase, it is multiplied by the same factor.
    """
    return growth ** (
        (min(max(progress, HARDENING_START_PROGRESS), HARDENING_END_PROGRESS) - HARDENING_START_PROGRESS)
        / (HARDENING_END_PROGRESS - HARDENING_START_PROGRESS)
    )


class SlbWeight(WeightBinarizer):
    """Returns in training the mean of a softmax over {-1, +1}, and in evaluation the level with the larger probability.

    A softmax over two levels has one degree of freedom. It is the latent weight w here, and the mean is tanh(t w). t is
    the inverse temperature and starts at 1. The published schedule multiplies t by 1.03 at each epoch (1.04 with real
    activations) from 0.4 E to 0.9 E, with E = 500 epochs. A shorter run uses the same total factor (`growth`) in fewer
    steps, because otherwise its softmax would never become sharp. The authors do the same in their settings for 100
    epochs: 1.2 per epoch over 40 of them.

    From 0.9 E on, weights are signs in training too and receive no gradient, as in the authors' later code. The
    remaining parameters adapt to the signs, and the running statistics become those of the signs. This replaces the
    second batch norm of the paper and its calibration after each epoch. As a consequence, an evaluation before 0.9 E is
    not meaningful, because it combines signs with the statistics of means. The code for CIFAR-10 is not public. As a
    choice of this package, the softmax starts from the initial weights of the network.
    """

    def __init__(self, weight: Tensor, *, growth: float = GROWTH) -> None:
        """Create the inverse temperature t, which starts at 1."""
        super().__init__(weight)
        check_number(growth, "the growth of slb", low=1)
        self.hardness = Schedule(partial(hardness_schedule, growth=growth))
        self.hard = Schedule(hard_sign_schedule)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the means of the softmax in training, and signs in evaluation."""
        mean = torch.tanh(self.hardness.value * weight)
        if self.training:
            training_weight = torch.where(self.hard.value > 0, ops.sign(weight.detach()), mean)
            return BinaryTensor(
                training_weight, non_binary_reason="in training its weights are expectations, between -1 and 1"
            )
        return BinaryTensor(ops.soft_sign(weight, mean))


class SlbActivation(BnnActivation):
    """Returns sign(x) with slope 1 where |x| <= 1, as in BNN.

    The released settings for ResNets mention the clipping of PACT, but without code. The paper's ResNet-20 for CIFAR-10
    also has a PReLU between convolution and batch norm. No network of this package has this.
    """
