"""Where the kernels can run."""

from __future__ import annotations

import importlib.util
import os

from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read once: a compiler that traces `usable` sees a constant


def usable(*tensors: Tensor) -> bool:
    """Whether Triton is here and all tensors are where its kernels run: on a GPU, or anywhere when interpreted."""
    return _TRITON and (_INTERPRETED or all(t.is_cuda for t in tensors))
