"""Triton kernel of gram.py. A program multiplies one part of the rows of a tensor by the same part of another tensor.

The other tensor can be the same one. For more than 128 rows, a program computes one tile of at most 128 x 128. The
product of a tensor with itself is symmetric, so only tiles on and above the diagonal are computed, and the others are
mirrored. Up to eight products share a launch, because a single product leaves most of a GPU idle. Programs do not add
to each other's results. So the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_PRODUCTS_PER_LAUNCH = 8
_MAX_ROWS_PER_PROGRAM = 128  # maximum number of rows of each factor in one program


@triton.jit
def _multiply_part(
    x, y, out, rows, columns, step_x, step_y,
    SAME: tl.constexpr, SIDES: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Computes one ROWS x ROWS tile of x y^T over the columns of one part (TILES blocks of BLOCK columns). SIDES is the
    # number of tiles per side. If SAME is set, y is x. Then tiles below the diagonal are not computed, but filled by
    # mirroring.
    tile_row = tl.program_id(2) // SIDES
    tile_column = tl.program_id(2) % SIDES
    if not SAME or tile_row <= tile_column:
        left_row = tile_row * ROWS + tl.arange(0, ROWS)
        right_row = tile_column * ROWS + tl.arange(0, ROWS)
        lane = tl.arange(0, BLOCK)
        first_tile = tl.program_id(0) * TILES
        total = tl.zeros((ROWS, ROWS), dtype=tl.float32)
        # Add the products of BLOCK columns at a time. Rows and columns past the end are loaded as 0.
        for t in range(TILES):
            column = (first_tile + t) * BLOCK + lane
            mask = (left_row[:, None] < rows) & (column[None, :] < columns)
            left = tl.load(x + left_row[:, None] * step_x + column[None, :], mask=mask, other=0.0)
            right = left
            if not SAME or SIDES > 1:
                mask = (right_row[:, None] < rows) & (column[None, :] < columns)
                right = tl.load(y + right_row[:, None] * step_y + column[None, :], mask=mask, other=0.0)
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
        output_mask = (left_row[:, None] < rows) & (right_row[None, :] < rows)
        tl.store(out + left_row[:, None] * rows + right_row[None, :], total, mask=output_mask)
        if SAME and SIDES > 1:  # noqa: SIM102  # compile-time constant, unlike the inner condition
            if tile_row < tile_column:
                mirrored_mask = (right_row[:, None] < rows) & (left_row[None, :] < rows)
                tl.store(out + right_row[:, None] * rows + left_row[None, :], tl.trans(total), mask=mirrored_mask)


@triton.jit
def _gram_kernel(
    x0, x1, x2, x3, x4, x5, x6, x7,
    y0, y1, y2, y3, y4, y5, y6, y7,
    columns0, columns1, columns2, columns3, columns4, columns5, columns6, columns7,
    step_x0, step_x1, step_x2, step_x3, step_x4, step_x5, step_x6, step_x7,
    step_y0, step_y1, step_y2, step_y3, step_y4, step_y5, step_y6, step_y7,
    out, rows, SAME: tl.constexpr, SIDES: tl.constexpr,
    TILES0: tl.constexpr, TILES1: tl.constexpr, TILES2: tl.constexpr, TILES3: tl.constexpr,
    TILES4: tl.constexpr, TILES5: tl.constexpr, TILES6: tl.constexpr, TILES7: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # The first grid axis is the part of the rows, the second the product. A Triton kernel has no lists of tensors, so a
    # chain of conditions selects the tensors of the product.
    product_index = tl.program_id(1)
    part_address = out + (product_index * tl.num_programs(0) + tl.program_id(0)) * rows * rows
    if product_index == 0:
        _multiply_part(x0, y0, part_address, rows, columns0, step_x0, step_y0, SAME, SIDES, TILES0, ROWS, BLOCK)
    elif product_index == 1:
        _multiply_part(x1, y1, part_address, rows, columns1, step_x1, step_y1, SAME, SIDES, TILES1, ROWS, BLOCK)
    elif product_index == 2:
        _multiply_part(x2, y2, part_address, rows, columns2, step_x2, step_y2, SAME, SIDES, TILES2, ROWS, BLOCK)
    elif product_index == 3:
        _multiply_part(x3, y3, part_address, rows, columns3, step_x3, step_y3, SAME, SIDES, TILES3, ROWS, BLOCK)
    elif product_index == 4:
        _multiply_part(x4, y4, part_address, rows, columns4, step_x4, step_y4, SAME, SIDES, TILES4, ROWS, BLOCK)
    elif product_index == 5:
        _multiply_part(x5, y5, part_address, rows, columns5, step_x5, step_y5, SAME, SIDES, TILES5, ROWS, BLOCK)
    elif product_index == 6:
        _multiply_part(x6, y6, part_address, rows, columns6, step_x6, step_y6, SAME, SIDES, TILES6, ROWS, BLOCK)
    else:
        _multiply_part(x7, y7, part_address, rows, columns7, step_x7, step_y7, SAME, SIDES, TILES7, ROWS, BLOCK)


def launch_gram(lefts: Sequence[Tensor], rights: Sequence[Tensor], out: Tensor) -> None:
    """Write the products of tensors (n, d) into out (b, parts, n, n). The rows of each tensor must be contiguous.

    If `rights` is empty, each tensor of `lefts` is multiplied by itself.
    """
    parts, rows = out.shape[1], out.shape[2]
    size = min(_MAX_ROWS_PER_PROGRAM, max(16, triton.next_power_of_2(rows)))
    sides = triton.cdiv(rows, size)
    for begin in range(0, len(lefts), _PRODUCTS_PER_LAUNCH):
        xs = _pad_list(lefts[begin : begin + _PRODUCTS_PER_LAUNCH])
        ys = _pad_list(rights[begin : begin + _PRODUCTS_PER_LAUNCH]) if rights else xs
        block = 64 if all(x.dtype.itemsize == 2 for x in xs) else 16
        columns = [x.shape[1] for x in xs]
        steps = [x.stride(0) for x in (*xs, *ys)]
        tiles = [triton.cdiv(count, parts * block) for count in columns]
        grid = (parts, min(_PRODUCTS_PER_LAUNCH, len(lefts) - begin), sides * sides)
        sizes = (not rights, sides, *tiles, size, block)
        _gram_kernel[grid](
            *xs, *ys, *columns, *steps, out[begin:], rows, *sizes, num_warps=8 if size == _MAX_ROWS_PER_PROGRAM else 4
        )


def _pad_list(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Repeat the first tensor until the list is as long as a launch requires. No program reads the repetitions."""
    return [*tensors, *[tensors[0]] * (_PRODUCTS_PER_LAUNCH - len(tensors))]
