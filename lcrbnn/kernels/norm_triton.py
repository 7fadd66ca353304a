"""The kernels behind norm.py: a program adds up some rows of a map, and the last one to end puts the parts together.

Who is last is known from a count in memory, which it sets back to 0. The parts are put together in their own order, so
that the result does not depend on who is last. What has been written by others is read past the nearest cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE = 64  # channels of a program, at most
_NUMBERS = 4096  # of a tile
_PROGRAMS = 264  # twice as many as a large GPU has multiprocessors
_PARTS: tl.constexpr = tl.constexpr(64)  # that are put together at a time


@triton.jit
def _is_last(count):
    tl.debug_barrier()  # all of the program's parts are written
    return tl.atomic_add(count, 1) == tl.num_programs(0) - 1


@triton.jit
def _some(few, parts, channels, channel, PROGRAMS: tl.constexpr):
    """Some of the parts: their numbers, which of them there are, and where they lie."""
    part = few * _PARTS + tl.arange(0, _PARTS)
    there = (part[:, None] < PROGRAMS) & (channel < channels)[None, :]
    return part, there, parts + part[:, None] * 2 * channels + channel[None, :]


@triton.jit
def _statistics(
    x, weights, biases, means, variances, parts, counts, out, rows, channels, eps, momentum,
    TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Mean and variance of each channel, and what follows; each program adds up around a number of its own."""
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    known = channel < channels
    first = tl.program_id(0) * TILES * ROWS
    around = tl.load(x + first * channels + channel, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    squares = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for tile in range(TILES):
        row = first + tile * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & known[None, :]
        value = tl.load(x + row[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - around[None, :], 0.0)
        total += value
        squares += value * value
    added = tl.sum(total, 0)
    mean = added / tl.minimum(rows - first, TILES * ROWS)
    place = parts + tl.program_id(0) * 2 * channels + channel
    tl.store(place, mean + around, mask=known)
    tl.store(place + channels, tl.sum(squares, 0) - added * mean, mask=known)
    if _is_last(counts + tl.program_id(1)):
        tl.store(counts + tl.program_id(1), 0)
        middle = tl.zeros((WIDTH,), dtype=tl.float32)
        for few in range((PROGRAMS + _PARTS - 1) // _PARTS):
            part, there, at = _some(few, parts, channels, channel, PROGRAMS)
            weight = tl.maximum(tl.minimum(rows - part * TILES * ROWS, TILES * ROWS), 0).to(tl.float32)
            middle += tl.sum(weight[:, None] * tl.load(at, mask=there, other=0.0, cache_modifier=".cg"), 0)
        middle = middle / rows
        apart = tl.zeros((WIDTH,), dtype=tl.float32)
        for few in range((PROGRAMS + _PARTS - 1) // _PARTS):
            part, there, at = _some(few, parts, channels, channel, PROGRAMS)
            weight = tl.maximum(tl.minimum(rows - part * TILES * ROWS, TILES * ROWS), 0).to(tl.float32)
            off = tl.load(at, mask=there, other=0.0, cache_modifier=".cg") - middle[None, :]
            inner = tl.load(at + channels, mask=there, other=0.0, cache_modifier=".cg")
            apart += tl.sum(tl.where(there, inner + weight[:, None] * off * off, 0.0), 0)
        scale = 1.0 / tl.sqrt(apart / rows + eps)
        slope = scale * tl.load(weights + channel, mask=known, other=0.0)
        bias = tl.load(biases + channel, mask=known, other=0.0)
        tl.store(out + channel, slope, mask=known)
        tl.store(out + channels + channel, bias - middle * slope, mask=known)
        tl.store(out + 2 * channels + channel, middle, mask=known)
        tl.store(out + 3 * channels + channel, scale, mask=known)
        before = tl.load(means + channel, mask=known, other=0.0)
        tl.store(means + channel, before + momentum * (middle - before), mask=known)
        before = tl.load(variances + channel, mask=known, other=0.0)
        tl.store(variances + channel, before + momentum * (apart / (rows - 1) - before), mask=known)


@triton.jit
def _coefficients(
    g, x, kept, parts, counts, out, rows, channels,
    TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Of each channel the sum of g and that of g (x - mean), and what follows from them."""
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    known = channel < channels
    first = tl.program_id(0) * TILES * ROWS
    mean = tl.load(kept + 2 * channels + channel, mask=known, other=0.0)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    along = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for tile in range(TILES):
        row = first + tile * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & known[None, :]
        at = row[:, None] * channels + channel[None, :]
        slope = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        total += slope
        along += slope * (value - mean[None, :])
    place = parts + tl.program_id(0) * 2 * channels + channel
    tl.store(place, tl.sum(total, 0), mask=known)
    tl.store(place + channels, tl.sum(along, 0), mask=known)
    if _is_last(counts + tl.program_id(1)):
        tl.store(counts + tl.program_id(1), 0)
        both = tl.zeros((WIDTH,), dtype=tl.float32)
        aside = tl.zeros((WIDTH,), dtype=tl.float32)
        for few in range((PROGRAMS + _PARTS - 1) // _PARTS):
            _part, there, at = _some(few, parts, channels, channel, PROGRAMS)
            both += tl.sum(tl.load(at, mask=there, other=0.0, cache_modifier=".cg"), 0)
            aside += tl.sum(tl.load(at + channels, mask=there, other=0.0, cache_modifier=".cg"), 0)
        slope = tl.load(kept + channel, mask=known, other=0.0)
        scale = tl.load(kept + 3 * channels + channel, mask=known, other=0.0)
        away = slope * scale * scale * (aside / rows)
        tl.store(out + channel, away, mask=known)
        tl.store(out + channels + channel, mean * away - slope * (both / rows), mask=known)
        tl.store(out + 2 * channels + channel, aside * scale, mask=known)
        tl.store(out + 3 * channels + channel, both, mask=known)


def statistics(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, momentum: float, counts: Tensor
) -> Tensor:
    """(rows, channels) -> (4, channels): slope, shift, mean, 1 / deviation; running mean and variance go on."""
    return _launched(_statistics, x, (x, weight, bias, mean, variance), counts, (eps, momentum))


def coefficients(g: Tensor, x: Tensor, kept: Tensor, counts: Tensor) -> Tensor:
    """Two of (rows, channels) and what `statistics` gave -> (4, channels): away, rest, gradients of weight and bias."""
    return _launched(_coefficients, x, (g, x, kept), counts, ())


def _launched(kernel: Any, x: Tensor, given: tuple[Tensor, ...], counts: Tensor, numbers: tuple[float, ...]) -> Tensor:
    rows, channels = x.shape
    width = min(WIDE, triton.next_power_of_2(channels))
    tall = _NUMBERS // width
    blocks = triton.cdiv(channels, width)
    tiles = triton.cdiv(rows, tall * max(1, _PROGRAMS // blocks))  # of a program
    programs = triton.cdiv(rows, tiles * tall)
    parts = torch.empty((programs, 2, channels), dtype=torch.float32, device=x.device)
    out = torch.empty((4, channels), dtype=torch.float32, device=x.device)
    grid = (programs, blocks)
    kernel[grid](*given, parts, counts, out, rows, channels, *numbers, tiles, tall, width, programs)
    return out
