"""BiPer: weights from a periodic function, first its values, then their signs (Vargas et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import Binary, WeightBinarizer, mean_magnitude, per_filter, per_output
from lcrbnn.methods.recu import RecuActivation

SWITCH = 2 / 3  # of training: the published 600 epochs of real sines, then 300 of signs


class BiperWeight(WeightBinarizer):
    """sin(w0 w) in the first stage, alpha sign(sin(w0 w)) in the second; slope of both w0 cos(w0 w).

    `frequency` is w0 = 20. alpha = mean |sin| of the filter, without gradient, is a choice: it keeps the size of the
    layer's output where the first stage left it, and the gradient of the sign is divided by it. Both stages are one
    run, with one schedule of the learning rate. In evaluation mode weights are signs in the first stage too.
    """

    def __init__(self, weight: Tensor, *, frequency: float = 20.0) -> None:
        """Take the frequency."""
        super().__init__(weight)
        number(frequency, "the frequency of biper", low=1e-3)
        self.frequency = frequency
        self.signs = Schedule(lambda progress: float(progress >= SWITCH))

    def latent(self, weight: Tensor) -> Tensor:
        """The sine."""
        return torch.sin(self.frequency * weight)

    def forward(self, weight: Tensor) -> Binary:
        """Sines over their scale, or signs, and the scale."""
        wave = self.latent(weight)
        alpha = mean_magnitude(wave.detach()).clamp_min(1e-6)
        inverse, scale = per_filter(1 / alpha, weight), per_output(alpha, weight)
        signs = ops.surrogate_sign(wave, ops.straight, inverse)
        if not self.training:
            return Binary(signs, scale)
        hard = torch.where(self.signs.value > 0, signs, wave * inverse)
        return Binary(hard, scale, soft="in training its weights are real at first")


class BiperActivation(RecuActivation):
    """As ReCU: sign(x), slope 2 - 2|x'|, x' = x over the deviation of its sample, in training."""
