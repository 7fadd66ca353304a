"""SiMaN: the larger half of the magnitudes is +1, the smaller half -1 (Lin et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.bireal import BirealActivation
from lcrbnn.methods.contract import Binary, WeightBinarizer, per_filter, per_output

CUT = 0.15  # the share of a filter's weights that is cut at each end, falling to 0 over training


class SimanWeight(WeightBinarizer):
    """alpha sign(|w'| - m), m the median of the filter's |w'|, w' the weight cut at its outer percentiles.

    The cut falls from 15 % at each end to 0 in a straight line (the path is ours; the ends are published). alpha is
    learned a filter from U(0, 1), as in ReCU by the same group. The gradient of the sign is the identity, and |.| has
    its own: a weight moves away from 0 or towards it, whatever its side. m takes no gradient.
    """

    def __init__(self, weight: Tensor) -> None:
        """Draw alpha."""
        super().__init__(weight)
        self.alpha = nn.Parameter(torch.rand(weight.shape[0]))
        self.cut = Schedule(lambda progress: CUT * (1 - progress))

    def latent(self, weight: Tensor) -> Tensor:
        """The magnitude of the cut weight, less its median."""
        ranked = weight.detach().flatten(1).sort(1).values
        n = ranked.shape[1]
        low = (self.cut.value * (n - 1)).round().long()
        ends = [per_filter(ranked.index_select(1, at.reshape(1))[:, 0], weight) for at in (low, n - 1 - low)]
        size = torch.minimum(torch.maximum(weight, ends[0]), ends[1]).abs()
        middle = size.detach().flatten(1).sort(1).values[:, n // 2]
        return size - per_filter(middle, weight)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the learned scale."""
        return Binary(ops.surrogate_sign(self.latent(weight), ops.straight), per_output(self.alpha, weight))


class SimanActivation(BirealActivation):
    """As Bi-Real: sign(x), slope 2 - 2|x| where |x| < 1. Its PReLU belongs to the network."""
