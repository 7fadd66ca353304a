"""SLB: searching for low-bit weights, an expectation that hardens (Yang et al. 2020)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.bnn import BnnActivation
from lcrbnn.methods.contract import Binary, WeightBinarizer

BEGIN, END = 0.4, 0.9  # of training: when the softmax hardens
GROWTH = 1.03**250  # how much it hardens in all: 1.03 an epoch over half of the published 500
GROWTH_WEIGHTS_ONLY = 1.04**250  # where activations are real


def hardened(progress: float) -> float:
    """1 once weights are signs in training too, before that 0."""
    return float(progress >= END)


def hardness(progress: float, growth: float) -> float:
    """The inverse temperature: 1, then growing by the same factor each epoch between BEGIN and END."""
    return growth ** ((min(max(progress, BEGIN), END) - BEGIN) / (END - BEGIN))


class SlbWeight(WeightBinarizer):
    """In training the mean of a softmax over {-1, +1}, in evaluation its more likely level.

    A softmax over two levels has one free number, the latent weight here: the mean is tanh(t w). t is the inverse
    temperature, 1 at first; published is times 1.03 an epoch (1.04 with real activations) from 0.4 E to 0.9 E with
    E = 500, and a shorter run takes the same total factor (`growth`) in fewer steps, or its softmax would never harden:
    so do the authors' settings for 100 epochs, 1.2 over 40 of them. From 0.9 E on weights are signs in training too and
    take no gradient, as in their later code: what is left learns beside them, and running statistics become those of
    the signs. It stands for the paper's second batch norm, and for its calibration after each epoch, which are left
    out: an evaluation before 0.9 E has signs under the statistics of expectations and says little. The code for
    CIFAR-10 is not public; the start of the softmax's numbers, the network's own for weights here, is a choice.
    """

    def __init__(self, weight: Tensor, *, growth: float = GROWTH) -> None:
        """Start at t = 1."""
        super().__init__(weight)
        number(growth, "the growth of slb", low=1)
        self.hardness = Schedule(partial(hardness, growth=growth))
        self.hard = Schedule(hardened)

    def forward(self, weight: Tensor) -> Binary:
        """Expectations in training, signs otherwise."""
        mean = torch.tanh(self.hardness.value * weight)
        if self.training:
            now = torch.where(self.hard.value > 0, ops.sign(weight.detach()), mean)
            return Binary(now, soft="in training its weights are expectations, between -1 and 1")
        return Binary(ops.dressed_sign(weight, mean))


class SlbActivation(BnnActivation):
    """As BNN: sign(x), slope 1 where |x| <= 1. The released settings name PACT's clip for ResNets, without code.

    Its ResNet-20 for CIFAR-10 also has a PReLU between convolution and batch norm, which no network of this package
    has.
    """
