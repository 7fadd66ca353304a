"""Gram matrices of maps: all inner products between the rows of a map, summed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lcrbnn.kernels.support import usable

PARTS = 16  # pieces that the kernel cuts a row into; their products are summed afterwards, always in the same order
_MOST_ROWS = 128
_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def grams(maps: Sequence[Tensor]) -> Tensor:
    """X X^T of each map (n, d): (b, n, n). The maps have one n; each may have a d of its own. Takes no gradient.

    Maps narrower than float32 are read as they are and summed in float32; float64 stays float64.
    """
    if _takes(maps):
        return gram_parts(list(maps)).sum(1)
    return torch.stack([_product(x if x.dtype.itemsize >= 4 else x.float()) for x in maps])


def _product(x: Tensor) -> Tensor:
    return x @ x.mT


def _takes(maps: Sequence[Tensor]) -> bool:
    return usable(*maps) and all(
        x.dtype in _TYPES and 0 < x.shape[0] <= _MOST_ROWS and 0 < x.numel() < 2**31 for x in maps
    )


@torch.library.custom_op("lcrbnn::gram_parts", mutates_args=())
def gram_parts(maps: Sequence[Tensor]) -> Tensor:
    """The products of each piece of the rows, (b, PARTS, n, n) in float32: summed over the pieces, Gram matrices."""
    from lcrbnn.kernels.gram_triton import launch

    rows = maps[0].shape[0]
    out = torch.empty((len(maps), PARTS, rows, rows), dtype=torch.float32, device=maps[0].device)
    launch([x if x.stride(1) == 1 and 0 <= x.stride(0) <= x.shape[1] else x.contiguous() for x in maps], out)
    return out


@gram_parts.register_fake
def _(maps: Sequence[Tensor]) -> Tensor:
    rows = maps[0].shape[0]
    return torch.empty((len(maps), PARTS, rows, rows), dtype=torch.float32, device=maps[0].device)
