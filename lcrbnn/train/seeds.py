"""Every random draw of a run comes from its seed and the place where it is needed, so that nothing has to be stored."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *place: str | int) -> int:
    """A 63-bit seed for one purpose at one place, such as derive(0, "order", epoch)."""
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *place: str | int) -> torch.Generator:
    """A CPU generator for one purpose at one place: the draws are the same on every device."""
    return torch.Generator().manual_seed(derive(seed, *place))
