"""BiPer: weights from a periodic function, first its values, then their signs (Vargas et al. 2024)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import Binary, WeightBinarizer, per_output
from lcrbnn.methods.recu import RecuActivation

SWITCH = 2 / 3  # of training: the published 600 epochs of real sines, then 300 of signs


def second_stage(progress: float, switch: float) -> float:
    """1 once weights are signs, before that 0."""
    return float(progress >= switch)


class BiperWeight(WeightBinarizer):
    """alpha sin(w0 w) in the first stage, alpha sign(sin(w0 w)) in the second; slope of both alpha w0 cos(w0 w).

    `frequency` is w0 = 20; alpha is learned a filter from U(0, 1), as in ReCU, whose code this one extends. Each layer
    adds `penalty` times the mean of sin(w0 w)^2 to the loss, 0.037 in the published first stage and 0.0468 in the
    second. Both stages are one run here, with one schedule of the learning rate: signs begin at `switch` of it, 2/3 as
    600 of 900 epochs. Apart, as published, they are two runs: `switch=1`, then one that starts from it with `switch=0`.
    In evaluation mode weights are signs in the first stage too.
    """

    def __init__(
        self, weight: Tensor, *, frequency: float = 20.0, penalty: float = 0.037, switch: float = SWITCH
    ) -> None:
        """Draw alpha."""
        super().__init__(weight)
        number(frequency, "the frequency of biper", low=1e-3)
        number(penalty, "the penalty of biper", low=0)
        number(switch, "the switch of biper", low=0, high=1)
        self.frequency, self.strength = frequency, penalty
        self.alpha = nn.Parameter(torch.rand(weight.shape[0]))
        self.signs = Schedule(partial(second_stage, switch=switch))

    def latent(self, weight: Tensor) -> Tensor:
        """The sine."""
        return torch.sin(self.frequency * weight)

    def forward(self, weight: Tensor) -> Binary:
        """Sines or signs, and the learned scale."""
        wave, scale = self.latent(weight), per_output(self.alpha, weight)
        signs = ops.surrogate_sign(wave, ops.straight)
        if not self.training:
            return Binary(signs, scale)
        return Binary(
            torch.where(self.signs.value > 0, signs, wave), scale, soft="in training its weights are real at first"
        )

    def penalty(self, weight: Tensor) -> Tensor:
        """The mean square of the sines, weighted."""
        return self.strength * self.latent(weight).square().mean()


class BiperActivation(RecuActivation):
    """As ReCU: sign(x), slope 2 - 2|x'|, x' = x over the deviation of its sample, in training."""
