"""A convolution that picks its kernel: torch's, or one for few channels (conv_triton.py) where that is faster."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.kernels.support import usable

WIDTHS = (16, 32, 64)  # channels that the kernel takes
THIN = 3  # input channels of an image, which it takes too
MOST = {
    16: 2**26,
    32: 2**25,
    64: 2**15,
}  # pixels of a batch: 32-bit offsets; with 64 channels torch's is faster on more


def conv2d(x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """As torch.nn.functional.conv2d, autocast included."""
    if bias is None and groups == 1 and _suits(x, w, stride, padding, dilation):
        short = _short(x, w)
        if short is not None:
            return convolve(x.to(short), w.to(short))
    return F.conv2d(x, w, bias, stride, padding, dilation, groups)


def _suits(x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    return (
        usable(x, w)
        and tuple(w.shape[2:]) == (3, 3)
        and stride == dilation == padding == (1, 1)
        and w.shape[0] in WIDTHS
        and (w.shape[1] in WIDTHS or (w.shape[1] == THIN and not x.requires_grad))
        and x.numel() // w.shape[1] <= MOST[max(w.shape[0], w.shape[1])]
    )


def _short(x: Tensor, w: Tensor) -> torch.dtype | None:
    """The 16-bit type that the product is taken in, if it is."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    else:
        dtype = x.dtype if x.dtype == w.dtype else torch.float32
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


@torch.library.custom_op("lcrbnn::convolve", mutates_args=())
def convolve(x: Tensor, w: Tensor) -> Tensor:
    """3 x 3, stride 1, padding 1: (n, in, h, w) and (out, in, 3, 3) -> (n, out, h, w), channels last, x's type."""
    from lcrbnn.kernels import conv_triton

    return conv_triton.convolve(_last(x), _last(w), back=False)


@torch.library.custom_op("lcrbnn::convolve_input", mutates_args=())
def convolve_input(g: Tensor, w: Tensor) -> Tensor:
    """The gradient of x from that of the output."""
    from lcrbnn.kernels import conv_triton

    return conv_triton.convolve(_last(g), _last(w), back=True)


@torch.library.custom_op("lcrbnn::convolve_weight", mutates_args=())
def convolve_weight(x: Tensor, g: Tensor) -> Tensor:
    """The gradient of w in parts, (parts, out, 3, 3, in) float32: their sum is left to whoever can fuse it."""
    from lcrbnn.kernels import conv_triton

    return conv_triton.correlate(_last(x), _last(g))


@convolve.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return _like(x, w.shape[0])


@convolve_input.register_fake
def _(g: Tensor, w: Tensor) -> Tensor:
    return _like(g, w.shape[1])


@convolve_weight.register_fake
def _(x: Tensor, g: Tensor) -> Tensor:
    from lcrbnn.kernels import conv_triton

    n, width, height, columns = x.shape
    count = conv_triton.parts(n * height * columns, max(width, g.shape[1]))
    return torch.empty((count, g.shape[1], 3, 3, width), dtype=torch.float32, device=x.device)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, w = ctx.saved_tensors
    gx = convolve_input(g, w) if ctx.needs_input_grad[0] else None
    gw = convolve_weight(x, g).sum(0).to(w.dtype).permute(0, 3, 1, 2) if ctx.needs_input_grad[1] else None
    return gx, gw


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


convolve.register_autograd(_backward, setup_context=_keep)


def _like(x: Tensor, channels: int) -> Tensor:
    n, _, h, w = x.shape
    return torch.empty((n, channels, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
