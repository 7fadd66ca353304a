"""Squared lengths of very long maps: how they stay within the range of float32 (or float64)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.kernels.support import usable

# Per type of the sums: a row whose largest number exceeds the first value is multiplied by the second, a power of two.
# Then the sum of its squares neither overflows (up to 2^24 numbers a row) nor falls below the shortest length.
_SHRINK = {torch.float32: (2.0**50, 2.0**-80), torch.float64: (2.0**500, 2.0**-528)}


def longest(dtype: torch.dtype) -> float:
    """Return the length above which the products of two rows may overflow in this type."""
    return torch.finfo(dtype).max ** 0.5 / 4


def shrink_long_rows(x: Tensor) -> Tensor:
    """Return the rows (n, d), of which those that are too long to be squared are multiplied by a power of two.

    A row keeps its direction exactly. Rows of ordinary size keep every bit. On the CPU, `x` itself is returned if no
    row is too long. No device has to be waited for.
    """
    limit, factor = _SHRINK[torch.promote_types(x.dtype, torch.float32)]
    if torch.finfo(x.dtype).max <= limit:  # float16
        return x
    too_long = torch.linalg.vector_norm(x.detach(), float("inf"), dim=1, keepdim=True) > limit
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(too_long.any()):
        return x
    return x * torch.where(too_long, factor, 1.0).to(x.dtype)


def shrink_unless_kernels(x: Tensor) -> Tensor:
    """Return `shrink_long_rows(x)`, but `x` itself where the Triton kernels read it.

    On a GPU, a copy of each map would cost more than the kernels. There, `leave_out` takes out the rows that are too
    long.
    """
    return x if usable(x) else shrink_long_rows(x)


def leave_out(products: Tensor, left_out: Tensor, right_out: Tensor) -> Tensor:
    """Return products (b, n, n) with 0 in the rows and columns whose maps are too long, (b, n) both.

    Where `shrink_long_rows` was applied only an infinite map is too long. There its NaN is kept.
    """
    if not usable(products):
        return products
    return products.masked_fill(left_out[:, :, None] | right_out[:, None, :], 0.0)
