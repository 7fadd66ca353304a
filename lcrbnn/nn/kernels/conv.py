"""Compute a convolution with torch, or with a Triton kernel for few channels if the kernel is faster."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.device import can_run_triton

SUPPORTED_CHANNELS = (16, 32, 64)
IMAGE_CHANNELS = 3  # the number of input channels of a color image; the kernel for images needs exactly this number
# Maximum number of pixels in a batch, by number of channels. For 16 and 32 channels, offsets of 32 bits set the limit.
# For 64 channels, torch is faster above this number.
MAX_PIXELS_BY_CHANNELS = {16: 2**26, 32: 2**25, 64: 2**15}


def conv2d(x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """Compute torch.nn.functional.conv2d, including its behavior under autocast."""
    if bias is None and groups == 1 and _supports_kernel(x, w, stride, padding, dilation):
        dtype = _find_16bit_dtype(x, w)
        if dtype is not None:
            return convolve(x.to(dtype), w.to(dtype), stride[0])
    return F.conv2d(x, w, bias, stride, padding, dilation, groups)


def _supports_kernel(x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    return (
        can_run_triton(x, w)
        and tuple(w.shape[2:]) == (3, 3)
        and dilation == padding == (1, 1)
        and (
            stride == (1, 1)
            or (stride == (2, 2) and w.shape[1] != IMAGE_CHANNELS and not any(n % 2 for n in x.shape[2:]))
        )
        and w.shape[0] in SUPPORTED_CHANNELS
        and (w.shape[1] in SUPPORTED_CHANNELS or (w.shape[1] == IMAGE_CHANNELS and not x.requires_grad))
        and x.numel() // w.shape[1] <= MAX_PIXELS_BY_CHANNELS[max(w.shape[0], w.shape[1])]
    )


def _find_16bit_dtype(x: Tensor, w: Tensor) -> torch.dtype | None:
    """Return the 16-bit dtype in which torch would compute this product, or None if torch would use another dtype."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    else:
        dtype = x.dtype if x.dtype == w.dtype else torch.float32
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


@torch.library.custom_op("lcrbnn::convolve", mutates_args=())
def convolve(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """Return the convolution with a 3x3 filter and padding 1.

    The shapes are (n, in, h, w) and (out, in, 3, 3) -> (n, out, h / stride, w / stride). The result is channels-last.
    """
    return _to_channels_first(
        _launch_convolution(_to_channels_last(x), _to_channels_last(w), stride, is_backward=False)
    )


@torch.library.custom_op("lcrbnn::convolve_input", mutates_args=())
def convolve_input(g: Tensor, w: Tensor, stride: int) -> Tensor:
    """Return the gradient of x, given the gradient of the output."""
    return _to_channels_first(_launch_convolution(_to_channels_last(g), _to_channels_last(w), stride, is_backward=True))


@torch.library.custom_op("lcrbnn::convolve_weight", mutates_args=())
def convolve_weight(x: Tensor, g: Tensor, stride: int) -> Tensor:
    """Return partial sums of the gradient of w, (parts, out, 3, 3, in), in float32.

    The caller adds the parts. So the compiler can fuse this sum with other operations.
    """
    return _launch_weight_gradient(_to_channels_last(x), _to_channels_last(g), stride)


@convolve.register_fake
def _(x: Tensor, w: Tensor, stride: int) -> Tensor:
    return _to_channels_first(_empty_convolution(_to_channels_last(x), _to_channels_last(w), stride, is_backward=False))


@convolve_input.register_fake
def _(g: Tensor, w: Tensor, stride: int) -> Tensor:
    return _to_channels_first(_empty_convolution(_to_channels_last(g), _to_channels_last(w), stride, is_backward=True))


@convolve_weight.register_fake
def _(x: Tensor, g: Tensor, stride: int) -> Tensor:
    return _empty_weight_gradient(_to_channels_last(x), _to_channels_last(g))


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, w = ctx.saved_tensors
    gx = convolve_input(g, w, ctx.stride) if ctx.needs_input_grad[0] else None
    gw = convolve_weight(x, g, ctx.stride).sum(0).to(w.dtype).permute(0, 3, 1, 2) if ctx.needs_input_grad[1] else None
    return gx, gw, None


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.stride = inputs[2]


convolve.register_autograd(_backward, setup_context=_save_for_backward)


# -- memory formats and kernel launches ------------------------------------------------------------------------------


def _to_channels_last(x: Tensor) -> Tensor:
    """Return (n, channels, h, w) as a contiguous tensor (n, h, w, channels)."""
    return x.permute(0, 2, 3, 1).contiguous()


def _to_channels_first(x: Tensor) -> Tensor:
    """Return (n, h, w, channels) as a view (n, channels, h, w)."""
    return x.permute(0, 3, 1, 2)


def _launch_convolution(x: Tensor, w: Tensor, stride: int, *, is_backward: bool) -> Tensor:
    from lcrbnn.nn.kernels import conv_triton

    return conv_triton.launch_convolution(x, w, stride, is_backward=is_backward)


def _launch_weight_gradient(x: Tensor, g: Tensor, stride: int) -> Tensor:
    from lcrbnn.nn.kernels import conv_triton

    return conv_triton.launch_weight_gradient(x, g, stride)


def _empty_convolution(x: Tensor, w: Tensor, stride: int, *, is_backward: bool) -> Tensor:
    n, *sides, _ = x.shape
    height, width = (side * stride if is_backward else side // stride for side in sides)
    return x.new_empty((n, height, width, w.shape[3] if is_backward else w.shape[0]))


def _empty_weight_gradient(x: Tensor, g: Tensor) -> Tensor:
    from lcrbnn.nn.kernels import conv_triton

    (n, height, width, out_channels), in_channels = g.shape, x.shape[3]
    num_parts = conv_triton.count_partial_sums(n * height * width, max(in_channels, out_channels))
    return torch.empty((num_parts, out_channels, 3, 3, in_channels), dtype=torch.float32, device=x.device)
