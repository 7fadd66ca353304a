"""Scale very long feature maps down, so that their sums of squares stay within the range of float32 or float64."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.device import can_run_triton

# Dictionary: type of the sums -> (limit, factor). If a row has an absolute value above the limit, the row is multiplied
# by the factor, a power of two. Then the sum of its squares does not overflow (for up to 2^24 numbers per row). The
# length of the row stays above the minimum length in retention_matrix.py.
_SHRINK_LIMIT_AND_FACTOR = {torch.float32: (2.0**50, 2.0**-80), torch.float64: (2.0**500, 2.0**-528)}


def max_safe_length(dtype: torch.dtype) -> float:
    """Return the length above which products of two rows may overflow in this type."""
    return torch.finfo(dtype).max ** 0.5 / 4


def shrink_long_rows(x: Tensor) -> Tensor:
    """Return the rows (n, d), but with rows whose squares would overflow multiplied by a power of two.

    The direction of each row does not change. Other rows stay equal in every bit. On the CPU, `x` itself is returned if
    no row is too long. On a GPU, the function does not wait for the device.
    """
    limit, factor = _SHRINK_LIMIT_AND_FACTOR[torch.promote_types(x.dtype, torch.float32)]
    # In float16, no row is too long, because squares of its values do not overflow in float32
    if torch.finfo(x.dtype).max <= limit:
        return x
    is_too_long = torch.linalg.vector_norm(x.detach(), float("inf"), dim=1, keepdim=True) > limit
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(is_too_long.any()):
        return x
    return x * torch.where(is_too_long, factor, 1.0).to(x.dtype)


def shrink_unless_kernels(x: Tensor) -> Tensor:
    """Return `shrink_long_rows(x)`, or `x` itself if Triton kernels will read `x`.

    On a GPU, copying each feature map would take longer than the kernels. There, `zero_long_rows` removes the rows that
    are too long.
    """
    return x if can_run_triton(x) else shrink_long_rows(x)


def zero_long_rows(products: Tensor, is_long_left: Tensor, is_long_right: Tensor) -> Tensor:
    """Return the products (b, n, n) with zeros in the rows and columns of samples that are too long.

    The masks are (b, n). Without the Triton kernels, `shrink_long_rows` has already been applied. Then only an infinite
    map is too long, and its NaN is kept.
    """
    if not can_run_triton(products):
        return products
    return products.masked_fill(is_long_left[:, :, None] | is_long_right[:, None, :], 0.0)
