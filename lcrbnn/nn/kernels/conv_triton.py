"""Triton kernels for 3x3 convolutions with few channels, stride 1 or 2 and padding 1, on channels-last tensors.

With 16 channels, a tile of a library kernel is mostly padding. Such a kernel takes ten times as long as reading the
feature map. Here a program computes consecutive output pixels with all channels. The nine taps of the filter are nine
small matrix products. Most of their inputs are already in the cache.

    x, g  input of the convolution and gradient of its output, (n, h, w, channels), contiguous. With stride 2, the
          height and width of x must be even.
    w     weights, (out, 3, 3, in), contiguous
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 9


@triton.jit
def _convolve_kernel(
    x, w, y, pixels, H: tl.constexpr, W: tl.constexpr, HX: tl.constexpr, WX: tl.constexpr, CI: tl.constexpr,
    CO: tl.constexpr, CW: tl.constexpr, STRIDE: tl.constexpr, BACK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # y[p, co] = sum over taps and ci of x[p * stride + tap, ci] * w[co, tap, ci]. p is an output pixel. An image of y
    # has H x W pixels, an image of x has HX x WX pixels. CI and CO are the channels of x and y.
    #
    # BACK: x is the gradient of the output and y that of the input. Then x is read only where (p + tap) / stride is an
    # integer, the taps are mirrored (8 - tap) and the weight is transposed. CW is the number of input channels of the
    # weight: CO in the backward pass (BACK), CI in the forward pass.
    # BLOCK consecutive output pixels per program, numbered over the whole batch. Each is split into image, row and
    # column.
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (p // W) % H
    column = p % W
    image = p // (H * W)
    ci = tl.arange(0, CI)
    co = tl.arange(0, CO)
    total = tl.zeros((BLOCK, CO), tl.float32)
    # One small matrix product per tap: (BLOCK, CI) input values times (CI, CO) weights, summed in float32. Taps outside
    # of the image are masked and count as 0.
    for tap in tl.static_range(9):
        if BACK:
            i = row + (tap // 3 - 1)
            j = column + (tap % 3 - 1)
            inside = (p < pixels) & (i >= 0) & (j >= 0) & (i % STRIDE == 0) & (j % STRIDE == 0)
            i = i // STRIDE
            j = j // STRIDE
        else:
            i = row * STRIDE + (tap // 3 - 1)
            j = column * STRIDE + (tap % 3 - 1)
            inside = (p < pixels) & (i >= 0) & (j >= 0)
        inside = inside & (i < HX) & (j < WX)
        a = tl.load(x + ((image * HX + i) * WX + j)[:, None] * CI + ci[None, :], mask=inside[:, None], other=0.0)
        if BACK:
            b = tl.load(w + ci[:, None] * (9 * CW) + (8 - tap) * CW + co[None, :])
        else:
            b = tl.load(w + co[None, :] * (9 * CW) + tap * CW + ci[:, None])
        total = tl.dot(a, b, total, input_precision=PRECISION)
    tl.store(y + p[:, None] * CO + co[None, :], total.to(y.dtype.element_ty), mask=(p < pixels)[:, None])


@triton.jit
def _weight_gradient_kernel(
    x, g, part, pixels, H: tl.constexpr, W: tl.constexpr, HX: tl.constexpr, WX: tl.constexpr, CI: tl.constexpr,
    CO: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    # part[program, co, tap, ci] = sum over the program's pixels p of g[p, co] * x[p * stride + tap, ci]. Each program
    # computes one row (ky) of the filter: its left, middle and right tap. It covers RUN blocks of BLOCK pixels of g.
    # The caller adds the partial sums of all programs.
    first_pixel = tl.program_id(0) * (BLOCK * RUN)
    ky = tl.program_id(1)
    ci = tl.arange(0, CI)
    co = tl.arange(0, CO)
    left = tl.zeros((CO, CI), tl.float32)
    middle = tl.zeros((CO, CI), tl.float32)
    right = tl.zeros((CO, CI), tl.float32)
    for block in range(RUN):
        p = first_pixel + block * BLOCK + tl.arange(0, BLOCK)
        i = (p // W) % H * STRIDE + (ky - 1)
        j = p % W * STRIDE
        pixel_mask = p < pixels
        # gt is the transposed block of g, (CO, BLOCK). The three taps of a filter row read x at the neighbouring
        # columns j - 1, j and j + 1. One block of g is thus loaded once for three products.
        gt = tl.load(g + p[None, :] * CO + co[:, None], mask=pixel_mask[None, :], other=0.0)
        row_mask = pixel_mask & (i >= 0) & (i < HX)
        address = x + ((p // (H * W) * HX + i) * WX + j)[:, None] * CI + ci[None, :]
        a = tl.load(address - CI, mask=(row_mask & (j > 0))[:, None], other=0.0)
        b = tl.load(address, mask=row_mask[:, None], other=0.0)
        c = tl.load(address + CI, mask=(row_mask & (j < WX - 1))[:, None], other=0.0)
        left = tl.dot(gt, a, left, input_precision=PRECISION)
        middle = tl.dot(gt, b, middle, input_precision=PRECISION)
        right = tl.dot(gt, c, right, input_precision=PRECISION)
    part_address = part + tl.program_id(0) * (CO * 9 * CI) + co[:, None] * (9 * CI) + (3 * ky) * CI + ci[None, :]
    tl.store(part_address, left)
    tl.store(part_address + CI, middle)
    tl.store(part_address + 2 * CI, right)


@triton.jit
def _convolve_image_kernel(
    x, w, y, pixels, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # The forward pass of _convolve_kernel for images with 3 channels. All 9 * 3 input values of a pixel form one row of
    # a matrix product. Its inner dimension is 32: k = tap * CI + channel, and the last entries are 0.
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = ((p // W) % H)[:, None]
    column = (p % W)[:, None]
    k = tl.arange(0, 32)[None, :]
    # The vertical offset, the horizontal offset and the channel of column k, from k = (3 * (dy + 1) + (dx + 1)) * CI +
    # channel.
    dy = k // (3 * CI) - 1
    dx = (k // CI) % 3 - 1
    inside = (p < pixels)[:, None] & (k < 9 * CI)
    inside = inside & (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
    a = tl.load(x + (p[:, None] + dy * W + dx) * CI + k % CI, mask=inside, other=0.0)
    co = tl.arange(0, CO)
    kk = tl.arange(0, 32)
    b = tl.load(w + co[None, :] * (9 * CI) + kk[:, None], mask=(kk < 9 * CI)[:, None], other=0.0)
    total = tl.dot(a, b, input_precision=PRECISION)
    tl.store(y + p[:, None] * CO + co[None, :], total.to(y.dtype.element_ty), mask=(p < pixels)[:, None])


@triton.jit
def _weight_gradient_image_kernel(
    x, g, part, pixels, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    # The weight gradient for images with 3 channels. One matrix product contains all taps, as in
    # _convolve_image_kernel.
    first_pixel = tl.program_id(0) * (BLOCK * RUN)
    k = tl.arange(0, 32)[None, :]
    dy = k // (3 * CI) - 1
    dx = (k // CI) % 3 - 1
    co = tl.arange(0, CO)
    total = tl.zeros((CO, 32), tl.float32)
    for block in range(RUN):
        p = first_pixel + block * BLOCK + tl.arange(0, BLOCK)
        row = ((p // W) % H)[:, None]
        column = (p % W)[:, None]
        inside = (p < pixels)[:, None] & (k < 9 * CI)
        inside = inside & (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
        a = tl.load(x + (p[:, None] + dy * W + dx) * CI + k % CI, mask=inside, other=0.0)
        gt = tl.load(g + p[None, :] * CO + co[:, None], mask=(p < pixels)[None, :], other=0.0)
        total = tl.dot(gt, a, total, input_precision=PRECISION)
    kk = tl.arange(0, 32)
    part_address = part + tl.program_id(0) * (CO * 9 * CI) + co[:, None] * (9 * CI) + kk[None, :]
    tl.store(part_address, total, mask=(kk < 9 * CI)[None, :])


# Dictionary from the larger number of channels (input or output) to the fastest measured (pixels per program, warps).
CONVOLUTION_TILES = {16: (256, 4), 32: (64, 4), 64: (64, 4)}
WEIGHT_GRADIENT_TILES = {
    16: (128, 8, 4),
    32: (64, 8, 4),
    64: (64, 8, 4),
}  # dictionary from the larger number of channels (input or output) to (pixels per block, blocks per program, warps)


def launch_convolution(x: Tensor, w: Tensor, stride: int, *, is_backward: bool) -> Tensor:
    """Return the output of a convolution.

    With `is_backward`, return the gradient of its input, and x is that of its output.
    """
    n, in_height, in_width, in_channels = x.shape
    out_channels = w.shape[3] if is_backward else w.shape[0]
    height, width = (side * stride if is_backward else side // stride for side in (in_height, in_width))
    y = torch.empty((n, height, width, out_channels), dtype=x.dtype, device=x.device)
    pixels, sides = n * height * width, (height, width)
    block, warps = CONVOLUTION_TILES[max(in_channels, out_channels)]
    grid = (triton.cdiv(pixels, block),)
    if in_channels * TAPS <= 32:
        _convolve_image_kernel[grid](
            x, w, y, pixels, *sides, in_channels, out_channels, _dot_precision(x), block, num_warps=warps
        )
    else:
        sizes = (pixels, *sides, in_height, in_width, in_channels, out_channels, w.shape[3], stride)
        _convolve_kernel[grid](x, w, y, *sizes, is_backward, _dot_precision(x), block, num_warps=warps)
    return y


def launch_weight_gradient(x: Tensor, g: Tensor, stride: int) -> Tensor:
    """Return partial sums of the gradient of the weights, (parts, out, 3, 3, in) in float32."""
    n, in_height, in_width, in_channels = x.shape
    height, width, out_channels = g.shape[1:]
    pixels, sides = n * height * width, (height, width)
    block, run, warps = WEIGHT_GRADIENT_TILES[max(in_channels, out_channels)]
    num_parts = count_partial_sums(pixels, max(in_channels, out_channels))
    part = torch.empty((num_parts, out_channels, 3, 3, in_channels), dtype=torch.float32, device=x.device)
    launch_options = (_dot_precision(x), block, run)
    if in_channels * TAPS <= 32:
        _weight_gradient_image_kernel[(num_parts,)](
            x, g, part, pixels, *sides, in_channels, out_channels, *launch_options, num_warps=warps
        )
    else:
        sizes = (pixels, *sides, in_height, in_width, in_channels, out_channels, stride)
        _weight_gradient_kernel[(num_parts, 3)](x, g, part, *sizes, *launch_options, num_warps=warps)
    return part


def count_partial_sums(pixels: int, max_channels: int) -> int:
    """Return the number of partial sums that launch_weight_gradient returns for this number of output pixels."""
    block, run, _ = WEIGHT_GRADIENT_TILES[max_channels]
    return triton.cdiv(pixels, block * run)


def _dot_precision(x: Tensor) -> str:
    # Precision of products of float32 inputs and of other inputs; for 16-bit inputs it has no effect
    return "ieee" if x.dtype == torch.float32 else "tf32"
