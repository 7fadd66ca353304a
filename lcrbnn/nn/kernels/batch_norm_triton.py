"""Triton kernels of batch_norm.py. Each program sums some rows. The program that finishes last combines all results.

An atomic counter in memory identifies the last program, which sets the counter back to 0. The partial results are
combined in a fixed order. So the result does not depend on which program is last. Partial results of other programs are
read with the cache modifier ".cg", which bypasses the L1 cache. That cache may hold old values.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_CHANNELS_PER_PROGRAM = 64
_ELEMENTS_PER_TILE = 4096
# Number of GPU programs that a launch aims for: about two programs per multiprocessor of a large GPU
_TARGET_PROGRAMS = 264
_PARTS_PER_STEP: tl.constexpr = tl.constexpr(64)  # number of partial results that the last program combines at a time


@triton.jit
def _is_last(counter):
    tl.debug_barrier()  # wait until all threads of this program have written their partial results
    return tl.atomic_add(counter, 1) == tl.num_programs(0) - 1


@triton.jit
def _locate_parts(step, parts, channels, channel, PROGRAMS: tl.constexpr):
    """Return the indices of one step's partial results, a mask of those that exist, and their addresses."""
    part = step * _PARTS_PER_STEP + tl.arange(0, _PARTS_PER_STEP)
    mask = (part[:, None] < PROGRAMS) & (channel < channels)[None, :]
    return part, mask, parts + part[:, None] * 2 * channels + channel[None, :]


@triton.jit
def _statistics_kernel(
    x, weights, biases, means, variances, parts, counters, out, rows, channels, eps, momentum,
    TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Compute mean and variance of each channel, and from them slope, shift and the running statistics.

    Each program subtracts a pivot (its first row) before it adds, which avoids cancellation for a large mean. The
    partial means and squared deviations are combined with the parallel variance formula of Chan et al.
    """
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    channel_mask = channel < channels
    first_row = tl.program_id(0) * TILES * ROWS
    pivot = tl.load(x + first_row * channels + channel, mask=channel_mask, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    squares = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    # Each lane adds its own rows. The values are shifted by the pivot, and masked rows count as 0.
    for tile in range(TILES):
        row = first_row + tile * ROWS + tl.arange(0, ROWS)
        mask = (row[:, None] < rows) & channel_mask[None, :]
        value = tl.load(x + row[:, None] * channels + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - pivot[None, :], 0.0)
        total += value
        squares += value * value
    # Partial results of this program: its mean, and the sum of squared deviations from that mean. The shift by the
    # pivot does not change the deviations.
    column_sum = tl.sum(total, 0)
    mean = column_sum / tl.minimum(rows - first_row, TILES * ROWS)
    part_address = parts + tl.program_id(0) * 2 * channels + channel
    tl.store(part_address, mean + pivot, mask=channel_mask)
    tl.store(part_address + channels, tl.sum(squares, 0) - column_sum * mean, mask=channel_mask)
    if _is_last(counters + tl.program_id(1)):
        tl.store(counters + tl.program_id(1), 0)
        # The last program combines the partial means. In a second loop, it combines the squared deviations. If a
        # program with n rows has the mean m and the deviations D, it contributes D + n (m - total mean)^2.
        total_mean = tl.zeros((WIDTH,), dtype=tl.float32)
        for step in range((PROGRAMS + _PARTS_PER_STEP - 1) // _PARTS_PER_STEP):
            part, part_mask, address = _locate_parts(step, parts, channels, channel, PROGRAMS)
            row_count = tl.maximum(tl.minimum(rows - part * TILES * ROWS, TILES * ROWS), 0).to(tl.float32)
            total_mean += tl.sum(
                row_count[:, None] * tl.load(address, mask=part_mask, other=0.0, cache_modifier=".cg"), 0
            )
        total_mean = total_mean / rows
        squared_deviations = tl.zeros((WIDTH,), dtype=tl.float32)
        for step in range((PROGRAMS + _PARTS_PER_STEP - 1) // _PARTS_PER_STEP):
            part, part_mask, address = _locate_parts(step, parts, channels, channel, PROGRAMS)
            row_count = tl.maximum(tl.minimum(rows - part * TILES * ROWS, TILES * ROWS), 0).to(tl.float32)
            mean_difference = tl.load(address, mask=part_mask, other=0.0, cache_modifier=".cg") - total_mean[None, :]
            part_deviations = tl.load(address + channels, mask=part_mask, other=0.0, cache_modifier=".cg")
            squared_deviations += tl.sum(
                tl.where(part_mask, part_deviations + row_count[:, None] * mean_difference * mean_difference, 0.0), 0
            )
        inverse_std = 1.0 / tl.sqrt(squared_deviations / rows + eps)
        # The normalized map is slope * x + (bias - mean * slope).
        slope = inverse_std * tl.load(weights + channel, mask=channel_mask, other=0.0)
        bias = tl.load(biases + channel, mask=channel_mask, other=0.0)
        tl.store(out + channel, slope, mask=channel_mask)
        tl.store(out + channels + channel, bias - total_mean * slope, mask=channel_mask)
        tl.store(out + 2 * channels + channel, total_mean, mask=channel_mask)
        tl.store(out + 3 * channels + channel, inverse_std, mask=channel_mask)
        running_value = tl.load(means + channel, mask=channel_mask, other=0.0)
        tl.store(means + channel, running_value + momentum * (total_mean - running_value), mask=channel_mask)
        # The running variance uses rows - 1 (unbiased), like torch. The variance that normalizes uses rows.
        running_value = tl.load(variances + channel, mask=channel_mask, other=0.0)
        tl.store(
            variances + channel,
            running_value + momentum * (squared_deviations / (rows - 1) - running_value),
            mask=channel_mask,
        )


@triton.jit
def _coefficients_kernel(
    g, x, statistics, parts, counters, out, rows, channels,
    TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Compute the backward pass's coefficients from the sums of g and of g (x - mean) per channel."""
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    channel_mask = channel < channels
    first_row = tl.program_id(0) * TILES * ROWS
    mean = tl.load(statistics + 2 * channels + channel, mask=channel_mask, other=0.0)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    centered_products = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for tile in range(TILES):
        row = first_row + tile * ROWS + tl.arange(0, ROWS)
        mask = (row[:, None] < rows) & channel_mask[None, :]
        address = row[:, None] * channels + channel[None, :]
        gradient = tl.load(g + address, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + address, mask=mask, other=0.0).to(tl.float32)
        total += gradient
        centered_products += gradient * (value - mean[None, :])
    # Sums of this program: g, which gives the bias gradient, and g * (x - mean), which gives the weight gradient.
    part_address = parts + tl.program_id(0) * 2 * channels + channel
    tl.store(part_address, tl.sum(total, 0), mask=channel_mask)
    tl.store(part_address + channels, tl.sum(centered_products, 0), mask=channel_mask)
    if _is_last(counters + tl.program_id(1)):
        tl.store(counters + tl.program_id(1), 0)
        gradient_sum = tl.zeros((WIDTH,), dtype=tl.float32)
        product_sum = tl.zeros((WIDTH,), dtype=tl.float32)
        for step in range((PROGRAMS + _PARTS_PER_STEP - 1) // _PARTS_PER_STEP):
            _part, part_mask, address = _locate_parts(step, parts, channels, channel, PROGRAMS)
            gradient_sum += tl.sum(tl.load(address, mask=part_mask, other=0.0, cache_modifier=".cg"), 0)
            product_sum += tl.sum(tl.load(address + channels, mask=part_mask, other=0.0, cache_modifier=".cg"), 0)
        slope = tl.load(statistics + channel, mask=channel_mask, other=0.0)
        inverse_std = tl.load(statistics + 3 * channels + channel, mask=channel_mask, other=0.0)
        # With a = slope and r = 1 / std, the gradient of x is a (g - mean(g) - (x - mean) r^2 mean(g (x - mean))).
        # Sorted by x, this is a g - x_factor x + constant.
        x_factor = slope * inverse_std * inverse_std * (product_sum / rows)
        tl.store(out + channel, x_factor, mask=channel_mask)
        tl.store(out + channels + channel, mean * x_factor - slope * (gradient_sum / rows), mask=channel_mask)
        tl.store(out + 2 * channels + channel, product_sum * inverse_std, mask=channel_mask)
        tl.store(out + 3 * channels + channel, gradient_sum, mask=channel_mask)


def launch_statistics(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    momentum: float,
    counters: Tensor,
) -> Tensor:
    """Return slope, shift, mean and 1 / std, (4, channels), of x (rows, channels).

    The running mean and variance are updated in place.
    """
    return _launch(_statistics_kernel, x, (x, weight, bias, mean, variance), counters, (eps, momentum))


def launch_coefficients(g: Tensor, x: Tensor, statistics: Tensor, counters: Tensor) -> Tensor:
    """Return x_factor, constant and the gradients of weight and bias, (4, channels), from g and x (rows, channels)."""
    return _launch(_coefficients_kernel, x, (g, x, statistics), counters, ())


def _launch(kernel: Any, x: Tensor, inputs: tuple[Tensor, ...], counters: Tensor, scalars: tuple[float, ...]) -> Tensor:
    rows, channels = x.shape
    width = min(MAX_CHANNELS_PER_PROGRAM, triton.next_power_of_2(channels))
    rows_per_tile = _ELEMENTS_PER_TILE // width
    blocks = triton.cdiv(channels, width)
    tiles_per_program = triton.cdiv(rows, rows_per_tile * max(1, _TARGET_PROGRAMS // blocks))
    programs = triton.cdiv(rows, tiles_per_program * rows_per_tile)
    partial_sums = torch.empty((programs, 2, channels), dtype=torch.float32, device=x.device)
    out = torch.empty((4, channels), dtype=torch.float32, device=x.device)
    grid = (programs, blocks)
    kernel[grid](
        *inputs,
        partial_sums,
        counters,
        out,
        rows,
        channels,
        *scalars,
        tiles_per_program,
        rows_per_tile,
        width,
        programs,
    )
    return out
