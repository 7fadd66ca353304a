"""The kernel behind gram.py: a program multiplies one piece of the rows of one map with itself.

Up to eight maps share a launch, since one alone leaves most of a GPU idle. Nothing is added up across programs, so that
the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_TOGETHER = 8  # maps a launch


@triton.jit
def _part(x, out, rows, columns, stride, TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, ROWS)
    lane = tl.arange(0, BLOCK)
    first = tl.program_id(0) * TILES
    total = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for t in range(TILES):
        column = (first + t) * BLOCK + lane
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        tile = tl.load(x + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
        total = tl.dot(tile, tl.trans(tile), total, input_precision="ieee")
    wanted = (row[:, None] < rows) & (row[None, :] < rows)
    tl.store(out + row[:, None] * rows + row[None, :], total, mask=wanted)


@triton.jit
def _parts(
    x0, x1, x2, x3, x4, x5, x6, x7,
    columns0, columns1, columns2, columns3, columns4, columns5, columns6, columns7,
    stride0, stride1, stride2, stride3, stride4, stride5, stride6, stride7,
    out, rows,
    TILES0: tl.constexpr, TILES1: tl.constexpr, TILES2: tl.constexpr, TILES3: tl.constexpr,
    TILES4: tl.constexpr, TILES5: tl.constexpr, TILES6: tl.constexpr, TILES7: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(1)
    place = out + (which * tl.num_programs(0) + tl.program_id(0)) * rows * rows
    if which == 0:
        _part(x0, place, rows, columns0, stride0, TILES0, ROWS, BLOCK)
    elif which == 1:
        _part(x1, place, rows, columns1, stride1, TILES1, ROWS, BLOCK)
    elif which == 2:
        _part(x2, place, rows, columns2, stride2, TILES2, ROWS, BLOCK)
    elif which == 3:
        _part(x3, place, rows, columns3, stride3, TILES3, ROWS, BLOCK)
    elif which == 4:
        _part(x4, place, rows, columns4, stride4, TILES4, ROWS, BLOCK)
    elif which == 5:
        _part(x5, place, rows, columns5, stride5, TILES5, ROWS, BLOCK)
    elif which == 6:
        _part(x6, place, rows, columns6, stride6, TILES6, ROWS, BLOCK)
    else:
        _part(x7, place, rows, columns7, stride7, TILES7, ROWS, BLOCK)


def launch(maps: Sequence[Tensor], out: Tensor) -> None:
    """Fill out (b, parts, n, n) from maps (n, d) whose rows lie whole in memory."""
    parts, rows = out.shape[1], out.shape[2]
    size = max(16, triton.next_power_of_2(rows))
    for begin in range(0, len(maps), _TOGETHER):
        some = maps[begin : begin + _TOGETHER]
        block = 64 if all(x.dtype.itemsize == 2 for x in some) else 16
        full = [*some, *[some[0]] * (_TOGETHER - len(some))]  # no program looks at those that fill up
        columns = [x.shape[1] for x in full]
        tiles = [triton.cdiv(count, parts * block) for count in columns]
        strides = [x.stride(0) for x in full]
        warps = 8 if size == 128 else 4
        _parts[(parts, len(some))](*full, *columns, *strides, out[begin:], rows, *tiles, size, block, num_warps=warps)
