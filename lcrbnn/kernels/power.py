"""Power iteration (Algorithm 2) of many small matrices in one kernel; retention/spectral.py has it in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.kernels.support import usable

# The revision of the LCR loss, which each record of a run holds as `lcr_revision` of its environment.
# Revision 2 returns v_{i-1} from the power iteration on a GPU. GPU records without this field were made with the start
# vector v_0 in its place, see docs/LOG.md.
LCR_REVISION = 2

_LARGEST = 256


def takes_power(small: Tensor) -> bool:
    """Whether the kernel can iterate these matrices, (b, m, n): square ones of at most 256 rows, in float32."""
    _, rows, columns = small.shape
    return usable(small) and small.dtype == torch.float32 and rows == columns and 0 < rows <= _LARGEST


@torch.library.custom_op("lcrbnn::power", mutates_args=())
def power(small: Tensor, start: Tensor, iterations: int, squared: bool) -> tuple[Tensor, Tensor]:
    """The last two vectors (v_i, v_{i-1}), each (b, n), as spectral.iterate gives them; start is (b, n).

    A step multiplies by the matrix, or if squared by its transpose times it, and scales to length 1.
    """
    from lcrbnn.kernels.power_triton import launch

    v, before = (torch.empty(start.shape, dtype=small.dtype, device=small.device) for _ in range(2))
    launch(small.contiguous(), start.contiguous(), v, before, iterations, squared)
    return v, before


@power.register_fake
def _(small: Tensor, start: Tensor, iterations: int, squared: bool) -> tuple[Tensor, Tensor]:
    v, before = (torch.empty(start.shape, dtype=small.dtype, device=small.device) for _ in range(2))
    return v, before
