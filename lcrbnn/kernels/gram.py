"""Products of maps over a batch: all inner products between the rows of two maps, or of one, summed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lcrbnn.kernels.support import usable

PARTS = 16  # pieces that the kernel cuts a row into; their products are summed afterwards, always in the same order
_MOST_ROWS, _MOST_WIDE_ROWS = 256, 128  # of 16-bit maps, and of float32 ones, whose product would not fit
_NARROW = (torch.bfloat16, torch.float16)


def grams(maps: Sequence[Tensor]) -> Tensor:
    """X X^T of each map (n, d): (b, n, n). The maps have one n; each may have a d of its own. Takes no gradient.

    Maps narrower than float32 are read as they are and summed in float32; float64 stays float64.
    """
    if all(_takes(x, _NARROW) or (_takes(x, (torch.float32,)) and x.shape[0] <= _MOST_WIDE_ROWS) for x in maps):
        return product_parts(list(maps), []).sum(1)
    return torch.stack([_product(x, x) for x in maps])


def products(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Tensor:
    """X Y^T of each pair of maps (n, d), as `grams` does it for a map and itself; a pair may differ in type."""
    pairs = list(zip(lefts, rights, strict=True))
    taken = [(x, y) for x, y in pairs if _goes_together(x, y)]
    if not taken:
        return torch.stack([_product(x, y) for x, y in pairs])
    found = product_parts([x for x, _ in taken], [y for _, y in taken]).sum(1)
    if len(taken) == len(pairs):
        return found
    rows = iter(found.unbind())
    return torch.stack([next(rows) if _goes_together(x, y) else _product(x, y) for x, y in pairs])


def _product(x: Tensor, y: Tensor) -> Tensor:
    x, y = (m if m.dtype.itemsize >= 4 else m.float() for m in (x, y))
    return x @ y.mT


def _goes_together(x: Tensor, y: Tensor) -> bool:
    # Two float32 maps stay with torch: the kernel has no tensor cores for them, and torch cuts them finer.
    return x.dtype == y.dtype and _takes(x, _NARROW) and _takes(y, _NARROW)


def _takes(x: Tensor, types: tuple[torch.dtype, ...]) -> bool:
    return usable(x) and x.dtype in types and 0 < x.shape[0] <= _MOST_ROWS and 0 < x.numel() < 2**31


@torch.library.custom_op("lcrbnn::product_parts", mutates_args=())
def product_parts(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Tensor:
    """The products of each piece of the rows, (b, PARTS, n, n) in float32, to be summed over the pieces.

    Without any on the right, each map is multiplied with itself.
    """
    from lcrbnn.kernels.gram_triton import launch

    out = _empty_parts(lefts)
    launch([_in_rows(x) for x in lefts], [_in_rows(x) for x in rights], out)
    return out


@product_parts.register_fake
def _(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Tensor:
    return _empty_parts(lefts)


def _empty_parts(maps: Sequence[Tensor]) -> Tensor:
    rows = maps[0].shape[0]
    return torch.empty((len(maps), PARTS, rows, rows), dtype=torch.float32, device=maps[0].device)


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 and 0 <= x.stride(0) <= x.shape[1] else x.contiguous()
