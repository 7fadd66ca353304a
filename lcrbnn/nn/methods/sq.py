"""SQ-BWN and SQ-TWN quantize a random part of the filters in each step, in the end all filters (Dong et al. 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import (
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
)

_UINT32_MASK = 0xFFFFFFFF


def _mix_bits(x: Tensor) -> Tensor:
    # The last part of MurmurHash3. It maps 32 bits to 32 bits, and each output bit depends on all input bits. The int64
    # products may overflow, but their low 32 bits are exact.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> shift)) * factor) & _UINT32_MASK
    return x ^ (x >> 16)


def counter_uniform(seed: Tensor, count: Tensor, size: int) -> Tensor:
    """Return `size` random float32 numbers inside (0, 1), which are a function of `seed` and `count`.

    Both are 0-dimensional int64 tensors. The numbers are the same on every device.
    """
    index = torch.arange(size, device=count.device)
    state = _mix_bits(
        _mix_bits(_mix_bits((seed & _UINT32_MASK) + 0x9E3779B9 & _UINT32_MASK) + count & _UINT32_MASK) + index
        & _UINT32_MASK
    )
    return ((state >> 9).float() + 0.5) / 2**23


QUANTIZED_FRACTIONS = (0.5, 0.75, 0.875, 1.0)  # fraction of the filters that is quantized, for each quarter of training


def quantized_fraction_schedule(progress: float) -> float:
    """Return the fraction of quantized filters at this progress."""
    return QUANTIZED_FRACTIONS[min(int(progress * len(QUANTIZED_FRACTIONS)), len(QUANTIZED_FRACTIONS) - 1)]


class SqWeight(WeightBinarizer):
    """Base class of weights with quantized and real filters.

    Each step keeps floor((1 - r) out) filters real. r grows to 1. The paper rounds this number. The released code
    truncates it, as here. The results differ if the number of filters is not a multiple of the number of stages.

    The real filters are drawn without replacement. The probability of a filter is proportional to its error |w - q|_1 /
    |w|_1. The draw is a function of two counters in buffers. So a captured step draws the same filters as an eager one,
    and a resumed run the same as an uninterrupted one. The gradient of the mixed weight passes straight to the latent
    weight. Each of the four published stages has its own learning-rate schedule. Here they are four quarters of one
    schedule. In evaluation mode all filters are quantized, also before the last stage.
    """

    non_binary_reason: str = ""  # reason why the weights are not binary: see BinaryTensor.non_binary_reason
    real: Tensor
    seed: Tensor
    count: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Draw the seed from torch's random generator."""
        super().__init__(weight)
        self.share = Schedule(quantized_fraction_schedule)
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("real", torch.zeros(weight.shape[0], dtype=torch.bool))

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the level of each weight (-1, 0 or 1) and the scale of each filter. Both have no gradient."""
        raise InputError(f"{type(self).__name__} is only a base class: use SqBwnWeight or SqTwnWeight")

    @torch.no_grad()
    def quantization_error(self, weight: Tensor) -> Tensor:
        """Return |w - q|_1 / |w|_1 of each filter, (out,)."""
        levels, scale = self.quantize(weight)
        distance = (weight - levels * broadcast_over_weight(scale, weight)).abs().flatten(1).sum(1)
        return distance / weight.abs().flatten(1).sum(1).clamp_min(1e-12)

    @torch.no_grad()
    def draw_real_filters(self, weight: Tensor) -> None:
        """Draw the filters that stay real in the next training step."""
        num_real = torch.floor((1 - self.share.value) * weight.shape[0])
        # Gumbel top-k: take the filters with the largest log(error) + Gumbel noise. Their distribution is that of a
        # draw without replacement with probabilities proportional to the errors.
        noise = -torch.log(-torch.log(counter_uniform(self.seed, self.count, weight.shape[0])))
        score = torch.log(self.quantization_error(weight).float().clamp_min(1e-12)) + noise
        self.real.copy_(score.argsort(descending=True).argsort() < num_real)

    @torch.no_grad()
    def start_epoch(self, weight: Tensor) -> None:
        """Draw the filters for the first step of the epoch, because the quantized fraction may have changed."""
        self.draw_real_filters(weight)

    @torch.no_grad()
    def project(self, weight: Tensor) -> None:
        """Draw the filters for the next step."""
        self.count.add_(1)
        self.draw_real_filters(weight)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return levels and one scale per filter.

        In training, some filters are real, and they are divided by their scale.
        """
        levels, scale = self.quantize(weight.detach())
        weight_scale = broadcast_over_weight(scale.clamp_min(1e-12), weight)
        training_weight, reason = levels, self.non_binary_reason
        if self.training:
            training_weight = torch.where(
                broadcast_over_weight(self.real, weight), weight.detach() / weight_scale, levels
            )
            reason = "in training some of its filters are real"
        return BinaryTensor(
            _StraightThrough.apply(weight, training_weight, 1 / weight_scale),
            broadcast_over_output(scale.clamp_min(1e-12), weight),
            non_binary_reason=reason,
        )


class _StraightThrough(torch.autograd.Function):
    # Autograd function that returns `quantized`, with the gradient of `weight * factor`.
    @staticmethod
    def forward(ctx: Any, weight: Tensor, quantized: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return quantized.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        return grad * factor, None, None


class SqBwnWeight(SqWeight):
    """Returns alpha sign(w), where alpha is the mean |w| of the filter."""

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signs and the mean magnitude of each filter."""
        return ops.sign(weight), mean_magnitude(weight)


class SqTwnWeight(SqWeight):
    """Returns alpha sign(w) where |w| > delta, and 0 elsewhere.

    As in the released code, delta = 0.7 mean |w - mean| of the layer. alpha is the mean of all |w| above delta, per
    filter. A filter may have no such weights. Then its levels are 0 and alpha has no effect (it is 1 here and 0 in the
    released code). Three levels are exported as two binary products.
    """

    bits = 2
    non_binary_reason = "its weights have three levels, and the format has two"

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the levels -1, 0 or 1, and for each filter the mean magnitude of the weights that are not 0."""
        axes = tuple(range(1, weight.dim()))
        delta = 0.7 * (weight - weight.mean()).abs().mean()
        is_nonzero = (weight.abs() > delta).to(weight.dtype)
        num_nonzero = is_nonzero.sum(axes)
        alpha = torch.where(num_nonzero > 0, (weight.abs() * is_nonzero).sum(axes) / num_nonzero.clamp_min(1), 1.0)
        return ops.sign(weight) * is_nonzero, alpha
