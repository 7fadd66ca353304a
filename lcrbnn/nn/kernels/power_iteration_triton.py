"""Triton kernels of power_iteration.py. A program computes all steps for one matrix.

A program keeps a matrix of up to 128 rows in registers. A larger matrix is read again at each step, in blocks of rows.

`previous_v` must not start with the same value as `v`. Triton's compiler (seen with 3.6) must find the variables that a
loop changes. It compares their values before and after a trial run of the loop body. If `previous_v` started as `v`,
the assignment `previous_v = v` would not change it in this trial run. The compiler would take it for a constant, and
the kernel would return the initial vector instead of the second-last one. Triton's interpreter does not have this
problem. So no test in the interpreter can detect it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_MAX_REGISTER_ROWS = 128  # maximum number of rows of a matrix that fits into registers


@triton.jit
def _power_kernel(
    matrices, initial_v, v_out, previous_v_out, n, STEPS: tl.constexpr, SQUARED: tl.constexpr, SIZE: tl.constexpr
):
    matrix_index = tl.program_id(0)
    column = tl.arange(0, SIZE)
    column_mask = column < n
    mask = column_mask[:, None] & column_mask[None, :]
    matrix = tl.load(matrices + matrix_index * n * n + column[:, None] * n + column[None, :], mask=mask, other=0.0)
    v = tl.load(initial_v + matrix_index * n + column, mask=column_mask, other=0.0)
    previous_v = tl.zeros((SIZE,), dtype=tl.float32)  # this name must not be `v`; the module docstring explains why
    for _ in range(STEPS):
        previous_v = v
        # y = M v, or M^T (M v) if SQUARED. Then y is scaled to length 1. Padded rows and columns are 0 and have no
        # effect.
        y = tl.sum(matrix * v[None, :], axis=1)
        if SQUARED:
            y = tl.sum(matrix * y[:, None], axis=0)
        length = tl.sqrt(tl.sum(y * y, axis=0))
        # As in spectral_norm.py, 1e-30 avoids a division by zero. Only a zero matrix gives a shorter product.
        v = y / tl.maximum(length, 1e-30)
    tl.store(v_out + matrix_index * n + column, v, mask=column_mask)
    tl.store(previous_v_out + matrix_index * n + column, previous_v, mask=column_mask)


@triton.jit
def _power_row_blocks_kernel(
    matrices, initial_v, v_out, previous_v_out, n,
    STEPS: tl.constexpr, SQUARED: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # The same steps as in _power_kernel, but the matrix is read in blocks of ROWS rows at each step. For SQUARED, M^T
    # (M v) is the sum of the contributions of all blocks, so one pass over the matrix suffices.
    matrix = matrices + tl.program_id(0) * n * n
    vectors = tl.program_id(0) * n
    column = tl.arange(0, SIZE)
    column_mask = column < n
    v = tl.load(initial_v + vectors + column, mask=column_mask, other=0.0)
    previous_v = tl.zeros((SIZE,), dtype=tl.float32)
    for _ in range(STEPS):
        previous_v = v
        y = tl.zeros((SIZE,), dtype=tl.float32)
        for begin in range(0, SIZE, ROWS):
            row = begin + tl.arange(0, ROWS)
            mask = (row[:, None] < n) & column_mask[None, :]
            block = tl.load(matrix + row[:, None] * n + column[None, :], mask=mask, other=0.0)
            product = tl.sum(block * v[None, :], axis=1)
            if SQUARED:
                y += tl.sum(block * product[:, None], axis=0)
            else:  # write the product of each row to its position in y: add a vector that is 0 elsewhere
                y += tl.sum(tl.where(row[:, None] == column[None, :], product[:, None], 0.0), axis=0)
        length = tl.sqrt(tl.sum(y * y, axis=0))
        v = y / tl.maximum(length, 1e-30)
    tl.store(v_out + vectors + column, v, mask=column_mask)
    tl.store(previous_v_out + vectors + column, previous_v, mask=column_mask)


def launch_power_iteration(
    matrices: Tensor, initial_v: Tensor, v: Tensor, previous_v: Tensor, iterations: int, squared: bool
) -> None:
    """Write the last two vectors into v and previous_v, (b, n).

    Matrices are contiguous (b, n, n), initial_v is (b, n).
    """
    count, n = initial_v.shape
    size = max(16, triton.next_power_of_2(n))
    if size > _MAX_REGISTER_ROWS:
        _power_row_blocks_kernel[(count,)](
            matrices, initial_v, v, previous_v, n, iterations, squared, size, 32, num_warps=8
        )
    else:
        _power_kernel[(count,)](
            matrices,
            initial_v,
            v,
            previous_v,
            n,
            iterations,
            squared,
            size,
            num_warps=8 if size == _MAX_REGISTER_ROWS else 4,
        )
