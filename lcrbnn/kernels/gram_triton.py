"""The kernel behind gram.py: a program multiplies one piece of the rows of one map with that of another, or its own.

Of more than 128 rows it takes 128 of each side; the product of a map with itself is made on and above the diagonal, and
mirrored. Up to eight products share a launch, since one alone leaves most of a GPU idle. Nothing is added up across
programs, so that the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_TOGETHER = 8  # products a launch
_SIDE = 128  # rows that a program takes of each side, at most


@triton.jit
def _part(
    x, y, out, rows, columns, step_x, step_y,
    SAME: tl.constexpr, SIDES: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    above = tl.program_id(2) // SIDES
    beside = tl.program_id(2) % SIDES
    if not SAME or above <= beside:
        one = above * ROWS + tl.arange(0, ROWS)
        two = beside * ROWS + tl.arange(0, ROWS)
        lane = tl.arange(0, BLOCK)
        first = tl.program_id(0) * TILES
        total = tl.zeros((ROWS, ROWS), dtype=tl.float32)
        for t in range(TILES):
            column = (first + t) * BLOCK + lane
            inside = (one[:, None] < rows) & (column[None, :] < columns)
            left = tl.load(x + one[:, None] * step_x + column[None, :], mask=inside, other=0.0)
            right = left
            if not SAME or SIDES > 1:
                inside = (two[:, None] < rows) & (column[None, :] < columns)
                right = tl.load(y + two[:, None] * step_y + column[None, :], mask=inside, other=0.0)
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
        wanted = (one[:, None] < rows) & (two[None, :] < rows)
        tl.store(out + one[:, None] * rows + two[None, :], total, mask=wanted)
        if SAME and SIDES > 1:  # noqa: SIM102  # this is known to the compiler, what follows is not
            if above < beside:
                mirrored = (two[:, None] < rows) & (one[None, :] < rows)
                tl.store(out + two[:, None] * rows + one[None, :], tl.trans(total), mask=mirrored)


@triton.jit
def _parts(
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
    which = tl.program_id(1)
    place = out + (which * tl.num_programs(0) + tl.program_id(0)) * rows * rows
    if which == 0:
        _part(x0, y0, place, rows, columns0, step_x0, step_y0, SAME, SIDES, TILES0, ROWS, BLOCK)
    elif which == 1:
        _part(x1, y1, place, rows, columns1, step_x1, step_y1, SAME, SIDES, TILES1, ROWS, BLOCK)
    elif which == 2:
        _part(x2, y2, place, rows, columns2, step_x2, step_y2, SAME, SIDES, TILES2, ROWS, BLOCK)
    elif which == 3:
        _part(x3, y3, place, rows, columns3, step_x3, step_y3, SAME, SIDES, TILES3, ROWS, BLOCK)
    elif which == 4:
        _part(x4, y4, place, rows, columns4, step_x4, step_y4, SAME, SIDES, TILES4, ROWS, BLOCK)
    elif which == 5:
        _part(x5, y5, place, rows, columns5, step_x5, step_y5, SAME, SIDES, TILES5, ROWS, BLOCK)
    elif which == 6:
        _part(x6, y6, place, rows, columns6, step_x6, step_y6, SAME, SIDES, TILES6, ROWS, BLOCK)
    else:
        _part(x7, y7, place, rows, columns7, step_x7, step_y7, SAME, SIDES, TILES7, ROWS, BLOCK)


def launch(lefts: Sequence[Tensor], rights: Sequence[Tensor], out: Tensor) -> None:
    """Fill out (b, parts, n, n) from maps (n, d) whose rows lie whole in memory; with no rights, from lefts alone."""
    parts, rows = out.shape[1], out.shape[2]
    size = min(_SIDE, max(16, triton.next_power_of_2(rows)))
    sides = triton.cdiv(rows, size)
    for begin in range(0, len(lefts), _TOGETHER):
        xs = _filled(lefts[begin : begin + _TOGETHER])
        ys = _filled(rights[begin : begin + _TOGETHER]) if rights else xs
        block = 64 if all(x.dtype.itemsize == 2 for x in xs) else 16
        columns = [x.shape[1] for x in xs]
        steps = [x.stride(0) for x in (*xs, *ys)]
        tiles = [triton.cdiv(count, parts * block) for count in columns]
        grid = (parts, min(_TOGETHER, len(lefts) - begin), sides * sides)
        sizes = (not rights, sides, *tiles, size, block)
        _parts[grid](*xs, *ys, *columns, *steps, out[begin:], rows, *sizes, num_warps=8 if size == _SIDE else 4)


def _filled(some: Sequence[Tensor]) -> list[Tensor]:
    """As many maps as a launch takes; no program looks at those that fill up."""
    return [*some, *[some[0]] * (_TOGETHER - len(some))]
