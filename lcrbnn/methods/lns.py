"""LNS: binary weights from a small mapping network, supervised by noisy signs (Han et al. 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.bnn import BnnActivation
from lcrbnn.methods.contract import Binary, WeightBinarizer, mean_magnitude, per_output, standardize_filters

HIDDEN = 16  # units of the mapping network


def unbiased_loss(scores: Tensor, labels: Tensor, flips: float) -> Tensor:
    """The mean logistic loss of scores, corrected for labels of which a share `flips` is wrong (Natarajan et al.)."""
    right, wrong = F.softplus(-labels * scores), F.softplus(labels * scores)
    return (((1 - flips) * right - flips * wrong) / (1 - 2 * flips)).mean()


class LnsWeight(WeightBinarizer):
    """alpha sign(M(w)), M a mapping network over the positions of each kernel, alpha = mean |w| of the filter.

    The code was withdrawn, so M is a choice: w' + V tanh(U w'), standardised again, w' the standardised filter, with
    a kernel's k x k numbers in and out and 16 units between, shared by the layer; V starts at 0, so that M starts as
    w'. Gradient: 1 where |M(w)| <= 1, then through M. A penalty supervises M by the noisy labels sign(w'), with the
    estimator that is unbiased if a share `flips` of them is wrong (0.1, both ways); `penalty` weighs its mean over the
    layer. It falls for ever as M grows, which is why M is standardised: otherwise no |M(w)| stays
    below 1, and no gradient reaches w.
    """

    training_only = ("enter", "leave")

    def __init__(self, weight: Tensor, *, penalty: float = 0.1, flips: float = 0.1) -> None:
        """Draw the mapping network."""
        super().__init__(weight)
        number(penalty, "the penalty of lns", low=0)
        number(flips, "the share of flipped labels of lns", low=0, high=0.49)
        self.strength, self.flips = penalty, flips
        taps = weight[0, 0].numel()
        self.enter = nn.Parameter(torch.randn(taps, HIDDEN) / taps**0.5)
        self.leave = nn.Parameter(torch.zeros(HIDDEN, taps))

    def latent(self, weight: Tensor) -> Tensor:
        """M(w)."""
        even = standardize_filters(weight)
        with torch.autocast(weight.device.type, enabled=False):
            kernels = even.reshape(*even.shape[:2], -1)
            mapped = even + (torch.tanh(kernels @ self.enter) @ self.leave).reshape(even.shape)
            return standardize_filters(mapped)

    def forward(self, weight: Tensor) -> Binary:
        """Signs of the mapped weight and a scale a filter."""
        signs = ops.surrogate_sign(self.latent(weight), ops.clip_closed)
        return Binary(signs, per_output(mean_magnitude(weight.detach()), weight))

    def penalty(self, weight: Tensor) -> Tensor:
        """The corrected loss of M's scores against the signs of w'."""
        labels = ops.sign(standardize_filters(weight.detach()))
        return self.strength * unbiased_loss(self.latent(weight), labels, self.flips)


class LnsActivation(BnnActivation):
    """As BNN: sign(x), slope 1 where |x| <= 1. The paper is about weights."""
