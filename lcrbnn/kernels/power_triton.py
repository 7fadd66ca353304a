"""The kernels behind power.py: a program takes all steps with one matrix.

It holds a matrix of up to 128 rows; a larger one it reads anew each step, some rows at a time.

`before` must not start as the same value as `v`. Triton's compiler (seen with 3.6) finds the variables that a loop
changes by comparing their values before and after one dry run of its body. In that run `before = v` gives `before` the
value that it has already, so the compiler takes it for a constant, and the kernel returns the start vector instead of
the second-last vector. Triton's interpreter does not do this, so no test in the interpreter shows it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_HELD = 128  # rows of a matrix that fit into registers


@triton.jit
def _power(small, start, v_out, before_out, n, STEPS: tl.constexpr, SQUARED: tl.constexpr, SIZE: tl.constexpr):
    which = tl.program_id(0)
    place = tl.arange(0, SIZE)
    inside = place < n
    whole = inside[:, None] & inside[None, :]
    matrix = tl.load(small + which * n * n + place[:, None] * n + place[None, :], mask=whole, other=0.0)
    v = tl.load(start + which * n + place, mask=inside, other=0.0)
    before = tl.zeros((SIZE,), dtype=tl.float32)  # not `v`: see the top of the file
    for _ in range(STEPS):
        before = v
        y = tl.sum(matrix * v[None, :], axis=1)
        if SQUARED:
            y = tl.sum(matrix * y[:, None], axis=0)
        length = tl.sqrt(tl.sum(y * y, axis=0))
        v = y / tl.maximum(length, 1e-30)  # as spectral.py: below it a product is that of a zero matrix
    tl.store(v_out + which * n + place, v, mask=inside)
    tl.store(before_out + which * n + place, before, mask=inside)


@triton.jit
def _power_in_rows(
    small, start, v_out, before_out, n,
    STEPS: tl.constexpr, SQUARED: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    matrix = small + tl.program_id(0) * n * n
    vectors = tl.program_id(0) * n
    place = tl.arange(0, SIZE)
    inside = place < n
    v = tl.load(start + vectors + place, mask=inside, other=0.0)
    before = tl.zeros((SIZE,), dtype=tl.float32)
    for _ in range(STEPS):
        before = v
        y = tl.zeros((SIZE,), dtype=tl.float32)
        for begin in range(0, SIZE, ROWS):
            row = begin + tl.arange(0, ROWS)
            whole = (row[:, None] < n) & inside[None, :]
            some = tl.load(matrix + row[:, None] * n + place[None, :], mask=whole, other=0.0)
            product = tl.sum(some * v[None, :], axis=1)
            if SQUARED:
                y += tl.sum(some * product[:, None], axis=0)
            else:  # each number to its place
                y += tl.sum(tl.where(row[:, None] == place[None, :], product[:, None], 0.0), axis=0)
        length = tl.sqrt(tl.sum(y * y, axis=0))
        v = y / tl.maximum(length, 1e-30)
    tl.store(v_out + vectors + place, v, mask=inside)
    tl.store(before_out + vectors + place, before, mask=inside)


def launch(small: Tensor, start: Tensor, v: Tensor, before: Tensor, iterations: int, squared: bool) -> None:
    """Fill v and before (b, n) from contiguous matrices (b, n, n) and starts (b, n)."""
    count, n = start.shape
    size = max(16, triton.next_power_of_2(n))
    if size > _HELD:
        _power_in_rows[(count,)](small, start, v, before, n, iterations, squared, size, 32, num_warps=8)
    else:
        _power[(count,)](small, start, v, before, n, iterations, squared, size, num_warps=8 if size == _HELD else 4)
