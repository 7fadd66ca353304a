"""Compute Gram matrices of feature maps, which are inner products of all pairs of samples in a batch, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lcrbnn.device import can_run_triton

# Number of parts into which each row is cut. Different programs multiply the parts. The products are added afterwards,
# in a fixed order.
NUM_PARTS = 16
# larger tiles of float32 would not fit into the memory of a multiprocessor
_MAX_ROWS_16BIT, _MAX_ROWS_FLOAT32 = 256, 128
_16BIT_DTYPES = (torch.bfloat16, torch.float16)


def gram_matrices(activations: Sequence[Tensor]) -> Tensor:
    """Return X X^T of each tensor X (n, d), as (b, n, n), without gradient. All tensors have the same n.

    The tensors may differ in d. 16-bit tensors are read without conversion and summed in float32. The result of float64
    is float64.
    """
    if all(
        _supports_kernel(x, _16BIT_DTYPES)
        or (_supports_kernel(x, (torch.float32,)) and x.shape[0] <= _MAX_ROWS_FLOAT32)
        for x in activations
    ):
        return product_parts(list(activations), []).sum(1)
    return torch.stack([_multiply_in_torch(x, x) for x in activations])


def pairwise_products(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Tensor:
    """Return X Y^T of each pair of tensors (n, d), like `gram_matrices`.

    The two tensors of a pair may differ in dtype.
    """
    pairs = list(zip(lefts, rights, strict=True))
    kernel_pairs = [(x, y) for x, y in pairs if _supports_pair(x, y)]
    if not kernel_pairs:
        return torch.stack([_multiply_in_torch(x, y) for x, y in pairs])
    products = product_parts([x for x, _ in kernel_pairs], [y for _, y in kernel_pairs]).sum(1)
    if len(kernel_pairs) == len(pairs):
        return products
    rows = iter(products.unbind())
    return torch.stack([next(rows) if _supports_pair(x, y) else _multiply_in_torch(x, y) for x, y in pairs])


def _multiply_in_torch(x: Tensor, y: Tensor) -> Tensor:
    x, y = (m if m.dtype.itemsize >= 4 else m.float() for m in (x, y))
    return x @ y.mT


def _supports_pair(x: Tensor, y: Tensor) -> bool:
    # torch multiplies float32 pairs. The kernel cannot use tensor cores for float32, and torch has smaller tiles.
    return x.dtype == y.dtype and _supports_kernel(x, _16BIT_DTYPES) and _supports_kernel(y, _16BIT_DTYPES)


def _supports_kernel(x: Tensor, dtypes: tuple[torch.dtype, ...]) -> bool:
    return can_run_triton(x) and x.dtype in dtypes and 0 < x.shape[0] <= _MAX_ROWS_16BIT and 0 < x.numel() < 2**31


@torch.library.custom_op("lcrbnn::product_parts", mutates_args=())
def product_parts(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Tensor:
    """Return the product of each part of the rows, (b, NUM_PARTS, n, n) in float32.

    The sum over the parts is the result. If `rights` is empty, each tensor is multiplied by itself.
    """
    from lcrbnn.nn.kernels.gram_triton import launch_gram

    out = _empty_parts(lefts)
    launch_gram([_with_contiguous_rows(x) for x in lefts], [_with_contiguous_rows(x) for x in rights], out)
    return out


@product_parts.register_fake
def _(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Tensor:
    return _empty_parts(lefts)


def _empty_parts(activations: Sequence[Tensor]) -> Tensor:
    rows = activations[0].shape[0]
    return torch.empty((len(activations), NUM_PARTS, rows, rows), dtype=torch.float32, device=activations[0].device)


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 and 0 <= x.stride(0) <= x.shape[1] else x.contiguous()
