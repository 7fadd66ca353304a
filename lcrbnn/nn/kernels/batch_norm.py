"""Batch norm in training for compiled steps. One kernel launch per direction computes all sums over the batch.

torch.compile generates three launches for such a sum. A network with many small feature maps spends most of its time on
launches. All elementwise work is plain torch code, so the compiler can fuse it with the operations around it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn.device import can_run_triton

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CHANNELS_PER_COUNTER = 64


def supports_batch_norm(x: Tensor) -> bool:
    """Return whether the kernels support this feature map, (n, c, h, w).

    It must be channels-last, have at least two rows (n h w > 1), and be small enough for 32-bit offsets.
    """
    if not can_run_triton(x) or x.dim() != 4 or x.dtype not in SUPPORTED_DTYPES:
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] < x.numel() < 2**31


def make_arrival_counters(channels: int, device: torch.device) -> Tensor:
    """Return the arrival counters of the kernels, all zero. They identify the program of a launch that finishes last.

    Each launch sets its counters back to zero. Two launches that may run at the same time need different counters.
    """
    return torch.zeros(-(-channels // CHANNELS_PER_COUNTER), dtype=torch.int32, device=device)


@torch.library.custom_op("lcrbnn::statistics", mutates_args=("mean", "variance"))
def forward_statistics(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    momentum: float,
    counters: Tensor,
) -> Tensor:
    """Return slope, shift, mean and 1 / std of each channel of x, (n, c, h, w).

    They are the four rows of the result, (4, c). The normalized feature map is `slope * x + shift`. The running mean
    and variance are updated with `momentum`.
    """
    from lcrbnn.nn.kernels import batch_norm_triton as norm_triton

    return norm_triton.launch_statistics(_as_rows(x), weight, bias, mean, variance, eps, momentum, counters)


@torch.library.custom_op("lcrbnn::coefficients", mutates_args=())
def backward_coefficients(g: Tensor, x: Tensor, statistics: Tensor, counters: Tensor) -> Tensor:
    """Return the four coefficients of the backward pass per channel, (4, c), from the gradient g, x and the statistics.

    The rows of the result are x_factor, constant, weight gradient and bias gradient. The gradient of x is `slope * g -
    x_factor * x + constant`.
    """
    from lcrbnn.nn.kernels import batch_norm_triton as norm_triton

    return norm_triton.launch_coefficients(_as_rows(g), _as_rows(x), statistics, counters)


@forward_statistics.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((4, x.shape[1]), dtype=torch.float32)


@backward_coefficients.register_fake
def _(g: Tensor, x: Tensor, statistics: Tensor, counters: Tensor) -> Tensor:
    return x.new_empty((4, x.shape[1]), dtype=torch.float32)


def _as_rows(x: Tensor) -> Tensor:
    """Reshape (n, c, h, w) to contiguous rows, (n h w, c)."""
    return x.permute(0, 2, 3, 1).contiguous().flatten(0, 2)


class _Normalize(torch.autograd.Function):
    """Normalization with one product and one sum per element.

    Only the feature map itself is saved for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, backward_counters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, statistics, backward_counters)
        return _cast_like(x, x * _broadcast_over_pixels(statistics[0]) + _broadcast_over_pixels(statistics[1]))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, backward_counters = ctx.saved_tensors
        coefficients = backward_coefficients(g, x, statistics, backward_counters)
        gx = (
            g * _broadcast_over_pixels(statistics[0])
            - x * _broadcast_over_pixels(coefficients[0])
            + _broadcast_over_pixels(coefficients[1])
        )
        return _cast_like(x, gx), coefficients[2], coefficients[3], None, None


def normalize(x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, backward_counters: Tensor) -> Tensor:
    """Return x normalized per channel, times weight, plus bias. `statistics` is the result of `forward_statistics`.

    `backward_counters` are the arrival counters of this layer for the backward pass.
    """
    y: Tensor = _Normalize.apply(x, weight, bias, statistics, backward_counters)
    return y


def _cast_like(x: Tensor, y: Tensor) -> Tensor:
    """Return y in the dtype of x. If the dtypes are equal, do not cast, because torch 2.11 would lose the gradient."""
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _broadcast_over_pixels(values: Tensor) -> Tensor:
    return values[:, None, None]
