"""Convolutions of 3 x 3 with few channels, stride 1 or 2, padding 1, on maps stored channels last.

With 16 channels a library's tile is mostly padding, and its time ten times that of reading the map. Here a program
takes a run of output pixels and all channels; the nine taps are nine small products whose inputs are mostly in cache.

    x, g  maps before and after, (n, h, w, channels), whole in memory; with stride 2 sides of x are even
    w     weights, (out, 3, 3, in), whole in memory
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 9


@triton.jit
def _convolve(x, w, y, pixels, H: tl.constexpr, W: tl.constexpr, HX: tl.constexpr, WX: tl.constexpr,
              CI: tl.constexpr, CO: tl.constexpr, CW: tl.constexpr, STRIDE: tl.constexpr, BACK: tl.constexpr,
              PRECISION: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    # y[p, co] = sum over taps and ci of x[p * stride + tap, ci] * weight; y has H x W pixels an image, x has HX x WX.
    # BACK: x is a gradient, taken where (p + tap) / stride is whole; taps are mirrored and the weight is transposed.
    # CW: the weight's own number of input channels.
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (p // W) % H
    column = p % W
    image = p // (H * W)
    ci = tl.arange(0, CI)
    co = tl.arange(0, CO)
    total = tl.zeros((BLOCK, CO), tl.float32)
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
def _correlate(x, g, part, pixels, H: tl.constexpr, W: tl.constexpr, HX: tl.constexpr, WX: tl.constexpr,
               CI: tl.constexpr, CO: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr,
               BLOCK: tl.constexpr, RUN: tl.constexpr):  # fmt: skip
    # part[program, co, tap, ci] = sum over the program's pixels p of g of g[p, co] * x[p * stride + tap, ci]; a row of
    # taps a program.
    first = tl.program_id(0) * (BLOCK * RUN)
    ky = tl.program_id(1)
    ci = tl.arange(0, CI)
    co = tl.arange(0, CO)
    left = tl.zeros((CO, CI), tl.float32)
    middle = tl.zeros((CO, CI), tl.float32)
    right = tl.zeros((CO, CI), tl.float32)
    for block in range(RUN):
        p = first + block * BLOCK + tl.arange(0, BLOCK)
        i = (p // W) % H * STRIDE + (ky - 1)
        j = p % W * STRIDE
        here = p < pixels
        gt = tl.load(g + p[None, :] * CO + co[:, None], mask=here[None, :], other=0.0)
        rows = here & (i >= 0) & (i < HX)
        at = x + ((p // (H * W) * HX + i) * WX + j)[:, None] * CI + ci[None, :]
        a = tl.load(at - CI, mask=(rows & (j > 0))[:, None], other=0.0)
        b = tl.load(at, mask=rows[:, None], other=0.0)
        c = tl.load(at + CI, mask=(rows & (j < WX - 1))[:, None], other=0.0)
        left = tl.dot(gt, a, left, input_precision=PRECISION)
        middle = tl.dot(gt, b, middle, input_precision=PRECISION)
        right = tl.dot(gt, c, right, input_precision=PRECISION)
    to = part + tl.program_id(0) * (CO * 9 * CI) + co[:, None] * (9 * CI) + (3 * ky) * CI + ci[None, :]
    tl.store(to, left)
    tl.store(to + CI, middle)
    tl.store(to + 2 * CI, right)


@triton.jit
def _convolve_thin(x, w, y, pixels, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
                   PRECISION: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    # As _convolve forward, for so few input channels (3) that all taps together fit one product of 32.
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = ((p // W) % H)[:, None]
    column = (p % W)[:, None]
    k = tl.arange(0, 32)[None, :]
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
def _correlate_thin(x, g, part, pixels, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
                    PRECISION: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr):  # fmt: skip
    first = tl.program_id(0) * (BLOCK * RUN)
    k = tl.arange(0, 32)[None, :]
    dy = k // (3 * CI) - 1
    dx = (k // CI) % 3 - 1
    co = tl.arange(0, CO)
    total = tl.zeros((CO, 32), tl.float32)
    for block in range(RUN):
        p = first + block * BLOCK + tl.arange(0, BLOCK)
        row = ((p // W) % H)[:, None]
        column = (p % W)[:, None]
        inside = (p < pixels)[:, None] & (k < 9 * CI)
        inside = inside & (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
        a = tl.load(x + (p[:, None] + dy * W + dx) * CI + k % CI, mask=inside, other=0.0)
        gt = tl.load(g + p[None, :] * CO + co[:, None], mask=(p < pixels)[None, :], other=0.0)
        total = tl.dot(gt, a, total, input_precision=PRECISION)
    kk = tl.arange(0, 32)
    to = part + tl.program_id(0) * (CO * 9 * CI) + co[:, None] * (9 * CI) + kk[None, :]
    tl.store(to, total, mask=(kk < 9 * CI)[None, :])


# Pixels a program, and warps, by the wider of the two channel counts.
BLOCKS = {16: (256, 4), 32: (64, 4), 64: (64, 4)}
RUNS = {16: (128, 8, 4), 32: (64, 8, 4), 64: (64, 8, 4)}  # pixels a block, blocks a program, warps


def convolve(x: Tensor, w: Tensor, stride: int, *, back: bool) -> Tensor:
    """The maps after a convolution, or, with `back`, the gradient of the maps before it from that of those after it."""
    n, height, columns, width = x.shape
    out = w.shape[3] if back else w.shape[0]
    tall, wide = (side * stride if back else side // stride for side in (height, columns))
    y = torch.empty((n, tall, wide, out), dtype=x.dtype, device=x.device)
    pixels, sides = n * tall * wide, (tall, wide)
    block, warps = BLOCKS[max(width, out)]
    grid = (triton.cdiv(pixels, block),)
    if width * TAPS <= 32:
        _convolve_thin[grid](x, w, y, pixels, *sides, width, out, _precision(x), block, num_warps=warps)
    else:
        sizes = (pixels, *sides, height, columns, width, out, w.shape[3], stride)
        _convolve[grid](x, w, y, *sizes, back, _precision(x), block, num_warps=warps)
    return y


def correlate(x: Tensor, g: Tensor, stride: int) -> Tensor:
    """The gradient of the weights in parts, (parts, out, 3, 3, in) float32, to be added up."""
    n, height, columns, width = x.shape
    tall, wide, out = g.shape[1:]
    pixels, sides = n * tall * wide, (tall, wide)
    block, run, warps = RUNS[max(width, out)]
    count = parts(pixels, max(width, out))
    part = torch.empty((count, out, 3, 3, width), dtype=torch.float32, device=x.device)
    last = (_precision(x), block, run)
    if width * TAPS <= 32:
        _correlate_thin[(count,)](x, g, part, pixels, *sides, width, out, *last, num_warps=warps)
    else:
        sizes = (pixels, *sides, height, columns, width, out, stride)
        _correlate[(count, 3)](x, g, part, *sizes, *last, num_warps=warps)
    return part


def parts(pixels: int, widest: int) -> int:
    """How many parts a weight's gradient comes in, by the pixels of the map after the convolution."""
    block, run, _ = RUNS[widest]
    return triton.cdiv(pixels, block * run)


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"  # 16-bit numbers are multiplied as they are either way
