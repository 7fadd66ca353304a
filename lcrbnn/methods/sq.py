"""SQ-BWN and SQ-TWN: part of the filters quantised, drawn anew at each step, until all are (Dong et al. 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import Binary, WeightBinarizer, mean_magnitude, per_filter, per_output
from lcrbnn.methods.draws import uniform

SHARES = (0.5, 0.75, 0.875, 1.0)  # of the filters that are quantised, a quarter of training each


def stage(progress: float) -> float:
    """The share of quantised filters at this progress."""
    return SHARES[min(int(progress * len(SHARES)), len(SHARES) - 1)]


class SqWeight(WeightBinarizer):
    """Quantised filters beside real ones. Each step keeps floor((1 - r) out) filters real, r by stages up to 1.

    The paper rounds; its code cuts, as here, which differs for widths that are no multiple of the stages.

    They are drawn by roulette: without replacement, with a chance that goes with the error |w - q|_1 / |w|_1. The draw
    is a function of two counts in buffers, so a captured step draws like a plain one and a resumed run like one that
    was never interrupted. The gradient of the hybrid weight goes straight to the latent one. The published four stages
    have a schedule of the learning rate each; here they are four quarters of one. In evaluation mode all filters are
    quantised, also before the last stage.
    """

    third: str = ""  # why levels are not signs, where they are not
    real: Tensor
    seed: Tensor
    count: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Take a seed from torch's generator."""
        super().__init__(weight)
        self.share = Schedule(stage)
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("real", torch.zeros(weight.shape[0], dtype=torch.bool))

    def quantized(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The levels of each weight, before the scale, and a scale a filter, (out,); without gradient."""
        raise InputError(f"{type(self).__name__} does not say how it quantises: use SqBwnWeight or SqTwnWeight")

    @torch.no_grad()
    def error(self, weight: Tensor) -> Tensor:
        """|w - q|_1 / |w|_1 of each filter, (out,)."""
        levels, scale = self.quantized(weight)
        apart = (weight - levels * per_filter(scale, weight)).abs().flatten(1).sum(1)
        return apart / weight.abs().flatten(1).sum(1).clamp_min(1e-12)

    @torch.no_grad()
    def redraw(self, weight: Tensor) -> None:
        """Draw the filters that stay real in the next step."""
        keep = torch.floor((1 - self.share.value) * weight.shape[0])
        # The largest log(error) + Gumbel noise: drawing one after the other, each time by the errors that are left.
        noise = -torch.log(-torch.log(uniform(self.seed, self.count, weight.shape[0])))
        score = torch.log(self.error(weight).float().clamp_min(1e-12)) + noise
        self.real.copy_(score.argsort(descending=True).argsort() < keep)

    @torch.no_grad()
    def start_epoch(self, weight: Tensor) -> None:
        """Draw for the first step: the share may have changed."""
        self.redraw(weight)

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Draw for the next step."""
        self.count.add_(1)
        self.redraw(weight)

    def forward(self, weight: Tensor) -> Binary:
        """Levels and a scale a filter; in training the real filters among them, over their scale."""
        levels, scale = self.quantized(weight.detach())
        wide = per_filter(scale.clamp_min(1e-12), weight)
        hard, soft = levels, self.third
        if self.training:
            hard = torch.where(per_filter(self.real, weight), weight.detach() / wide, levels)
            soft = "in training some of its filters are real"
        return Binary(_Through.apply(weight, hard, 1 / wide), per_output(scale.clamp_min(1e-12), weight), soft=soft)


class _Through(torch.autograd.Function):
    # `hard`, with the gradient of weight times a factor.
    @staticmethod
    def forward(ctx: Any, weight: Tensor, hard: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return hard.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        return grad * factor, None, None


class SqBwnWeight(SqWeight):
    """alpha sign(w), alpha = mean |w| of the filter."""

    def quantized(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Signs and mean magnitudes."""
        return ops.sign(weight), mean_magnitude(weight)


class SqTwnWeight(SqWeight):
    """alpha sign(w) where |w| > delta, else 0: delta = 0.7 mean |w - mean| of the layer, as in the released code.

    alpha is the mean |w| of those beyond, a filter; of a filter with none it is no matter (1 here, 0 there: its levels
    are 0). Three levels cannot be exported as 1 bit.
    """

    bits = 2
    third = "its weights have three levels, and the format has two"

    def quantized(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """-1, 0 or 1, and the mean magnitude of what is not 0."""
        axes = tuple(range(1, weight.dim()))
        delta = 0.7 * (weight - weight.mean()).abs().mean()
        beyond = (weight.abs() > delta).to(weight.dtype)
        count = beyond.sum(axes)
        alpha = torch.where(count > 0, (weight.abs() * beyond).sum(axes) / count.clamp_min(1), 1.0)
        return ops.sign(weight) * beyond, alpha
