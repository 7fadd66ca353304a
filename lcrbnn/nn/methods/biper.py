"""BiPer takes the signs of a periodic function of the weights.

The first stage uses its values, the second their signs (Vargas et al. 2024).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import BinaryTensor, WeightBinarizer, broadcast_over_output
from lcrbnn.nn.methods.recu import RecuActivation

# Training progress at which the second stage (signs instead of sines) begins. Published: 600 + 300 epochs.
SIGN_STAGE_PROGRESS = 2 / 3


def sign_stage_schedule(progress: float, switch: float) -> float:
    """Return 1 in the second stage, in which weights are signs, and 0 before."""
    return float(progress >= switch)


class BiperWeight(WeightBinarizer):
    """Returns alpha sin(w0 w) in the first stage and alpha sign(sin(w0 w)) in the second.

    In both stages, the slope is alpha w0 cos(w0 w). The option `frequency` is w0 = 20. alpha is learned per filter and
    starts from U(0, 1), as in ReCU, whose code the BiPer code extends. Each layer adds `penalty` times the mean of
    sin(w0 w)^2 to the loss (published: 0.037 in the first stage, 0.0468 in the second). Here both stages are one run
    with one learning-rate schedule. The second stage begins at the fraction `switch` of the run: 2/3, which is 600 of
    900 epochs. The published stages are two runs. To do the same, train with `switch=1`, then start a second run from
    the result with `switch=0`. In evaluation mode, weights are signs in the first stage too.
    """

    def __init__(
        self, weight: Tensor, *, frequency: float = 20.0, penalty: float = 0.037, switch: float = SIGN_STAGE_PROGRESS
    ) -> None:
        """Draw the initial scale alpha of each filter."""
        super().__init__(weight)
        check_number(frequency, "the frequency of biper", low=1e-3)
        check_number(penalty, "the penalty of biper", low=0)
        check_number(switch, "the switch of biper", low=0, high=1)
        self.frequency, self.penalty_weight = frequency, penalty
        self.alpha = nn.Parameter(torch.rand(weight.shape[0]))
        self.signs = Schedule(partial(sign_stage_schedule, switch=switch))

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return sin(w0 w), whose sign is taken."""
        return torch.sin(self.frequency * weight)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return sines or signs, and the learned scale."""
        sine, scale = self.pre_sign_weight(weight), broadcast_over_output(self.alpha, weight)
        signs = ops.surrogate_sign(sine, ops.identity_slope)
        if not self.training:
            return BinaryTensor(signs, scale)
        return BinaryTensor(
            torch.where(self.signs.value > 0, signs, sine),
            scale,
            non_binary_reason="in training its weights are real at first",
        )

    def extra_loss(self, weight: Tensor) -> Tensor:
        """Return the mean square of the sines, times the penalty weight."""
        return self.penalty_weight * self.pre_sign_weight(weight).square().mean()


class BiperActivation(RecuActivation):
    """Returns sign(x) with slope 2 - 2|x'|, as in ReCU. In training, x' is x divided by the deviation of its sample."""
