"""LNS computes binary weights with a small mapping network, which is trained with noisy signs (Han et al. 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import (
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    mean_magnitude,
    standardize_filters,
)
from lcrbnn.nn.methods.bnn import BnnActivation

HIDDEN_UNITS = 16  # number of hidden units of the mapping network


def unbiased_loss(scores: Tensor, labels: Tensor, flips: float) -> Tensor:
    """Return the mean logistic loss of scores, corrected for a fraction `flips` of wrong labels (Natarajan et al.)."""
    right, wrong = F.softplus(-labels * scores), F.softplus(labels * scores)
    return (((1 - flips) * right - flips * wrong) / (1 - 2 * flips)).mean()


class LnsWeight(WeightBinarizer):
    """Returns alpha sign(M(w)). M is a small network that maps each kernel, and alpha is the mean |w| of the filter.

    The authors withdrew their code, so M is a choice of this package: w' + V tanh(U w'), standardized again. Here w' is
    the standardized filter. M maps the k x k numbers of a kernel to k x k numbers with 16 hidden units. All kernels of
    the layer share it. V starts at 0, so that M(w) starts as w'. The gradient of the sign is 1 where |M(w)| <= 1, and
    it then passes through M.

    A penalty trains M with the noisy labels sign(w'). The loss is an unbiased estimate if a fraction `flips` (0.1) of
    the labels of both classes is wrong. The option `penalty` is the weight of its mean over the layer. The loss
    decreases without bound as M(w) grows, so M(w) is standardized. Otherwise no |M(w)| would stay below 1, and no
    gradient would reach w.
    """

    training_only_parameters = ("enter", "leave")

    def __init__(self, weight: Tensor, *, penalty: float = 0.1, flips: float = 0.1) -> None:
        """Draw the initial weights of the mapping network."""
        super().__init__(weight)
        check_number(penalty, "the penalty of lns", low=0)
        check_number(flips, "the fraction of flipped labels of lns", low=0, high=0.49)
        self.penalty_weight, self.flips = penalty, flips
        taps = weight[0, 0].numel()
        self.enter = nn.Parameter(torch.randn(taps, HIDDEN_UNITS) / taps**0.5)
        self.leave = nn.Parameter(torch.zeros(HIDDEN_UNITS, taps))

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return M(w), the mapped weight."""
        standardized = standardize_filters(weight)
        with torch.autocast(weight.device.type, enabled=False):
            kernels = standardized.reshape(*standardized.shape[:2], -1)
            mapped = standardized + (torch.tanh(kernels @ self.enter) @ self.leave).reshape(standardized.shape)
            return standardize_filters(mapped)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs of the mapped weight and one scale per filter."""
        signs = ops.surrogate_sign(self.pre_sign_weight(weight), ops.closed_clip_slope)
        return BinaryTensor(signs, broadcast_over_output(mean_magnitude(weight.detach()), weight))

    def extra_loss(self, weight: Tensor) -> Tensor:
        """Return the corrected loss of the scores M(w) with the signs of w' as labels."""
        labels = ops.sign(standardize_filters(weight.detach()))
        return self.penalty_weight * unbiased_loss(self.pre_sign_weight(weight), labels, self.flips)


class LnsActivation(BnnActivation):
    """Returns sign(x) with slope 1 where |x| <= 1, as in BNN. The paper only describes weights."""
