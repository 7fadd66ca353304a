"""Random numbers without a generator: a function of a seed and a count, the same eager, compiled, captured, resumed."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    # 32 bits in, 32 bits out, each depending on all (the finaliser of MurmurHash3); int64 holds the products' low bits.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 16)


def uniform(seed: Tensor, count: Tensor, size: int) -> Tensor:
    """`size` numbers inside (0, 1), float32, for 0-dimensional int64 tensors on any device."""
    index = torch.arange(size, device=count.device)
    state = _mixed(_mixed(_mixed((seed & _MASK) + 0x9E3779B9 & _MASK) + count & _MASK) + index & _MASK)
    return ((state >> 9).float() + 0.5) / 2**23
