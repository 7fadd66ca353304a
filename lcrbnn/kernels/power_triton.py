"""The kernel behind power.py: a program reads one matrix and takes all steps with it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _power(small, start, v_out, before_out, n, STEPS: tl.constexpr, SQUARED: tl.constexpr, SIZE: tl.constexpr):
    which = tl.program_id(0)
    place = tl.arange(0, SIZE)
    inside = place < n
    whole = inside[:, None] & inside[None, :]
    matrix = tl.load(small + which * n * n + place[:, None] * n + place[None, :], mask=whole, other=0.0)
    v = tl.load(start + which * n + place, mask=inside, other=0.0)
    before = v
    for _ in range(STEPS):
        before = v
        y = tl.sum(matrix * v[None, :], axis=1)
        if SQUARED:
            y = tl.sum(matrix * y[:, None], axis=0)
        length = tl.sqrt(tl.sum(y * y, axis=0))
        v = y / tl.maximum(length, 1e-30)  # as spectral.py: below it a product is that of a zero matrix
    tl.store(v_out + which * n + place, v, mask=inside)
    tl.store(before_out + which * n + place, before, mask=inside)


def launch(small: Tensor, start: Tensor, v: Tensor, before: Tensor, iterations: int, squared: bool) -> None:
    """Fill v and before (b, n) from contiguous matrices (b, n, n) and starts (b, n)."""
    count, n = start.shape
    size = max(16, triton.next_power_of_2(n))
    _power[(count,)](small, start, v, before, n, iterations, squared, size, num_warps=8 if size == 128 else 4)
