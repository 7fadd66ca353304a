"""Batch norm in training, made for a compiler: what is added up over a batch is one launch, forward and backward.

torch's compiler makes three launches of such a sum, and a network of many small maps spends its time on launches. The
rest, all that is done number by number, is plain code for the compiler to fuse with what is around it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn.kernels.support import usable

TYPES = (torch.bfloat16, torch.float16, torch.float32)
BLOCK = 64  # channels that share a count


def takes_norm(x: Tensor) -> bool:
    """Whether the kernels can add up this map, (n, c, h, w): channels last, offsets of 32 bits, two rows or more."""
    if not usable(x) or x.dim() != 4 or x.dtype not in TYPES:
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] < x.numel() < 2**31


def counts_for(channels: int, device: torch.device) -> Tensor:
    """By which the kernels know who ends last: zeros before and after a launch. Two launches at a time share none."""
    return torch.zeros(-(-channels // BLOCK), dtype=torch.int32, device=device)


@torch.library.custom_op("lcrbnn::statistics", mutates_args=("mean", "variance"))
def statistics(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, momentum: float, counts: Tensor
) -> Tensor:
    """Of a map (n, c, h, w), a row each of (4, c): slope, shift, mean and 1 / deviation.

    What is normalised is `slope * x + shift`. The running mean and variance move on by `momentum`.
    """
    from lcrbnn.kernels import norm_triton

    return norm_triton.statistics(_rows(x), weight, bias, mean, variance, eps, momentum, counts)


@torch.library.custom_op("lcrbnn::coefficients", mutates_args=())
def coefficients(g: Tensor, x: Tensor, kept: Tensor, counts: Tensor) -> Tensor:
    """Of a gradient and its map, with what `statistics` gave, a row each of (4, c): away, rest, and the gradients.

    The map's gradient is `slope * g - away * x + rest`; the last two rows are those of weight and bias.
    """
    from lcrbnn.kernels import norm_triton

    return norm_triton.coefficients(_rows(g), _rows(x), kept, counts)


@statistics.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((4, x.shape[1]), dtype=torch.float32)


@coefficients.register_fake
def _(g: Tensor, x: Tensor, kept: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty((4, x.shape[1]), dtype=torch.float32)


def _rows(x: Tensor) -> Tensor:
    """(n, c, h, w) -> (n h w, c), whole in memory."""
    return x.permute(0, 2, 3, 1).contiguous().flatten(0, 2)


class _Normalize(torch.autograd.Function):
    """Written as a product and a sum a number: nothing but the map itself is kept for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, kept, back)
        return _as(x, x * _spread(kept[0]) + _spread(kept[1]))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kept, back = ctx.saved_tensors
        found = coefficients(g, x, kept, back)
        gx = g * _spread(kept[0]) - x * _spread(found[0]) + _spread(found[1])
        return _as(x, gx), found[2], found[3], None, None


def normalize(x: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, back: Tensor) -> Tensor:
    """Each channel with mean 0 and variance 1, times weight, plus bias: from `kept`, which `statistics` gave.

    `back` are the counts of this place in the network, for the way back.
    """
    y: Tensor = _Normalize.apply(x, weight, bias, kept, back)
    return y


def _as(x: Tensor, y: Tensor) -> Tensor:
    """In the type of x. A cast that changes nothing must not be there: torch 2.11 loses the gradient then."""
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _spread(values: Tensor) -> Tensor:
    return values[:, None, None]
