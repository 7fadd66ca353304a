"""Power iteration (Algorithm 2) of many small matrices in one kernel.

`lcr/spectral_norm.py` has the version in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.device import can_run_triton

# The revision of the LCR loss. Each record of a run stores it as `lcr_revision` in its environment. Since revision 2,
# the power iteration on a GPU returns v_{i-1}. GPU records without this field are of revision 1, in which it returned
# the start vector v_0 by mistake (see paper/docs/LOG.md).
LCR_REVISION = 2

_MAX_ROWS = 256


def supports_power_iteration(matrices: Tensor) -> bool:
    """Return whether the kernel supports these matrices. They must be (b, n, n) in float32 with n at most 256."""
    _, rows, columns = matrices.shape
    return can_run_triton(matrices) and matrices.dtype == torch.float32 and rows == columns and 0 < rows <= _MAX_ROWS


@torch.library.custom_op("lcrbnn::power", mutates_args=())
def power_iteration(matrices: Tensor, initial_v: Tensor, iterations: int, squared: bool) -> tuple[Tensor, Tensor]:
    """Return the last two vectors (v_i, v_{i-1}), each (b, n), like `power_iterate` of `lcr/spectral_norm.py`.

    Each step multiplies the vector by the matrix (by A^T A if `squared`), then scales it to length 1. `initial_v` is
    (b, n).
    """
    from lcrbnn.nn.kernels.power_iteration_triton import launch_power_iteration

    v, previous_v = (torch.empty(initial_v.shape, dtype=matrices.dtype, device=matrices.device) for _ in range(2))
    launch_power_iteration(matrices.contiguous(), initial_v.contiguous(), v, previous_v, iterations, squared)
    return v, previous_v


@power_iteration.register_fake
def _(small: Tensor, start: Tensor, iterations: int, squared: bool) -> tuple[Tensor, Tensor]:
    v, before = (torch.empty(start.shape, dtype=small.dtype, device=small.device) for _ in range(2))
    return v, before
