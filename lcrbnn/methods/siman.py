"""SiMaN: the larger half of the magnitudes is +1, the smaller half -1 (Lin et al. 2022)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import (
    FLOOR,
    ActivationBinarizer,
    Binary,
    WeightBinarizer,
    mean_magnitude,
    per_filter,
    per_output,
    standardize_filters,
    standardize_samples,
)

CUT = 0.15  # the share of a layer's magnitudes that is cut at each end, falling to 0 over training


def cut_share(progress: float, first: float = CUT) -> float:
    """From this share to 0 in a straight line."""
    return first * (1 - progress)


def quantile(ranked: Tensor, share: Tensor) -> Tensor:
    """The number below which this share of them lies, of sorted ones; a CUDA graph can hold it as the share moves."""
    last = ranked.shape[0] - 1
    place = (share * last).clamp(0, last)
    below = place.floor().long()
    ends = [ranked.index_select(0, at.reshape(1))[0] for at in (below, (below + 1).clamp_max(last))]
    return torch.lerp(ends[0], ends[1], (place - below).to(ranked.dtype))


class SimanWeight(WeightBinarizer):
    """alpha sign(|w'| - m), w' the standardised filter, m such that half of its |w'| are larger: those are +1.

    The gradient of the sign is the identity, then that of |.|: a weight moves away from 0 or towards it, whatever its
    side; then that of the standardisation. m takes none. alpha is learned a filter, from the mean |w| of the fresh
    weight. The latent weight is kept centred, its magnitudes cut at the outer percentiles of the layer, `cut` of them
    at each end at first, 15 % (5 % is the default of its released options), and none at last: the released code
    does it before each pass, here `project` does after each step, and `initialize` for a fresh weight. There the
    weights of binary layers do not decay (`decay = "real"`).
    """

    def __init__(self, weight: Tensor, *, cut: float = CUT) -> None:
        """Start alpha at the mean |w| of each filter."""
        super().__init__(weight)
        number(cut, "the cut of siman", low=0, high=0.5)
        self.alpha = nn.Parameter(mean_magnitude(weight.detach()).clone())
        self.cut = Schedule(partial(cut_share, first=cut))

    def latent(self, weight: Tensor) -> Tensor:
        """The magnitude of the standardised weight, less the middle one."""
        size = standardize_filters(weight, FLOOR).abs()
        n = weight[0].numel()
        middle = ops.ranked(size.detach().flatten(1))[:, n - n // 2]
        return size - per_filter(middle, weight)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the learned scale."""
        return Binary(ops.surrogate_sign(self.latent(weight), ops.straight), per_output(self.alpha, weight))

    def initialize(self, weight: Tensor) -> None:
        """Centre and cut a fresh weight."""
        self.project(weight)

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Centre each filter and cut the magnitudes of the layer, in place."""
        centred = weight - weight.mean(tuple(range(1, weight.dim())), keepdim=True)
        size = centred.abs()
        ranked = size.flatten().sort().values
        low, high = (quantile(ranked, share) for share in (self.cut.value, 1 - self.cut.value))
        weight.copy_(torch.minimum(torch.maximum(size, low), high) * torch.sign(centred))


class SimanActivation(ActivationBinarizer):
    """sign(x'), x' the sample minus its mean over its standard deviation, train and test; slope 2 - 2|x'|.

    Its PReLU belongs to the network: `resnet20-double-prelu`, `resnet18-double-prelu`.
    """

    sample_sums = 1

    def forward(self, x: Tensor) -> Binary:
        """Signs of each sample, standardised over all but its first axis."""
        return Binary(ops.surrogate_sign(standardize_samples(x, FLOOR), ops.triangle))
