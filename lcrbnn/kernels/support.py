"""Where the kernels can run, and how several runs come to them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read once: a compiler that traces `usable` sees a constant


def usable(*tensors: Tensor) -> bool:
    """Whether Triton is here and all tensors are where its kernels run: on a GPU, or anywhere when interpreted."""
    return _TRITON and (_INTERPRETED or all(t.is_cuda for t in tensors))


def in_front(info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What torch.vmap hands to a kernel's rule, with the runs as the first dimension; what all share is repeated."""
    together = zip(dims, tensors, strict=False)  # dims may go on: what is no tensor has one too
    return [t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0) for dim, t in together]
