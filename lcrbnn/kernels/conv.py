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
            return convolve(x.to(short), w.to(short), stride[0])
    return F.conv2d(x, w, bias, stride, padding, dilation, groups)


def _suits(x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    return (
        usable(x, w)
        and tuple(w.shape[2:]) == (3, 3)
        and dilation == padding == (1, 1)
        and (stride == (1, 1) or (stride == (2, 2) and w.shape[1] != THIN and not any(n % 2 for n in x.shape[2:])))
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
def convolve(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """3 x 3, padding 1: (n, in, h, w) and (out, in, 3, 3) -> (n, out, h / stride, w / stride), channels last."""
    return _shown(_convolved(_stored(x), _stored(w), stride, back=False))


@torch.library.custom_op("lcrbnn::convolve_input", mutates_args=())
def convolve_input(g: Tensor, w: Tensor, stride: int) -> Tensor:
    """The gradient of x from that of the output."""
    return _shown(_convolved(_stored(g), _stored(w), stride, back=True))


@torch.library.custom_op("lcrbnn::convolve_weight", mutates_args=())
def convolve_weight(x: Tensor, g: Tensor, stride: int) -> Tensor:
    """The gradient of w in parts, (parts, out, 3, 3, in) float32: their sum is left to whoever can fuse it."""
    return _correlated(_stored(x), _stored(g), stride)


@convolve.register_fake
def _(x: Tensor, w: Tensor, stride: int) -> Tensor:
    return _shown(_convolved_fake(_stored(x), _stored(w), stride, back=False))


@convolve_input.register_fake
def _(g: Tensor, w: Tensor, stride: int) -> Tensor:
    return _shown(_convolved_fake(_stored(g), _stored(w), stride, back=True))


@convolve_weight.register_fake
def _(x: Tensor, g: Tensor, stride: int) -> Tensor:
    return _correlated_fake(_stored(x), _stored(g))


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, w = ctx.saved_tensors
    gx = convolve_input(g, w, ctx.stride) if ctx.needs_input_grad[0] else None
    gw = convolve_weight(x, g, ctx.stride).sum(0).to(w.dtype).permute(0, 3, 1, 2) if ctx.needs_input_grad[1] else None
    return gx, gw, None


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.stride = inputs[2]


convolve.register_autograd(_backward, setup_context=_keep)


# -- how maps lie in memory ------------------------------------------------------------------------------------------


def _stored(x: Tensor) -> Tensor:
    """(n, channels, h, w) -> (n, h, w, channels), whole in memory."""
    return x.permute(0, 2, 3, 1).contiguous()


def _shown(x: Tensor) -> Tensor:
    """The other way round, without moving anything."""
    return x.permute(0, 3, 1, 2)


def _convolved(x: Tensor, w: Tensor, stride: int, *, back: bool) -> Tensor:
    from lcrbnn.kernels import conv_triton

    return conv_triton.convolve(x, w, stride, back=back)


def _correlated(x: Tensor, g: Tensor, stride: int) -> Tensor:
    from lcrbnn.kernels import conv_triton

    return conv_triton.correlate(x, g, stride)


def _convolved_fake(x: Tensor, w: Tensor, stride: int, *, back: bool) -> Tensor:
    n, *sides, _ = x.shape
    tall, wide = (side * stride if back else side // stride for side in sides)
    return x.new_empty((n, tall, wide, w.shape[3] if back else w.shape[0]))


def _correlated_fake(x: Tensor, g: Tensor) -> Tensor:
    from lcrbnn.kernels import conv_triton

    (n, tall, wide, out), width = g.shape, x.shape[3]
    count = conv_triton.parts(n * tall * wide, max(width, out))
    return torch.empty((count, out, 3, 3, width), dtype=torch.float32, device=x.device)
