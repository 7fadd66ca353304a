"""What a corruption draws from: numbers that an image's place in its split decides, on every device the same bits."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lcrbnn.corrupt.photos import Photos


def _signed(value: int) -> int:
    """A 64-bit pattern as torch's int64 holds it."""
    return value - (1 << 64) if value >> 63 else value


# Steele, Lea and Flood's SplitMix64: a counter, scrambled. Sums and products wrap around, as two's complement does.
_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


class Source:
    """Random numbers of a batch, a row an image; they depend on `key`, the image's row and the draws before, only.

    So results depend on no batch, no worker and no device. `photos` are the frost's.
    """

    def __init__(self, key: str, rows: Tensor, photos: Photos | None = None) -> None:
        """Take a text that names the purpose, and the place (n,) of each image in its split."""
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
        self.state = _scrambled(rows.long() * _STEP + _signed(start))
        self.drawn = 0
        self.photos = photos

    def bits(self, *shape: int) -> Tensor:
        """64 random bits each, int64 (n, *shape)."""
        count = math.prod(shape)
        counter = torch.arange(self.drawn + 1, self.drawn + count + 1, device=self.state.device) * _STEP
        self.drawn += count
        return _scrambled(self.state[:, None] + counter).view(-1, *shape)

    def uniform(self, *shape: int) -> Tensor:
        """From 0 to 1, 1 left out: float64 (n, *shape)."""
        return _shifted(self.bits(*shape), 11).double() * 2.0**-53

    def normal(self, *shape: int) -> Tensor:
        """Of mean 0 and deviation 1: float64 (n, *shape), by Box and Muller."""
        count = math.prod(shape)
        half = (count + 1) // 2
        length = torch.sqrt(torch.log(1 - self.uniform(half)) * -2)
        angle = self.uniform(half) * (2 * math.pi)
        pairs = torch.cat([length * torch.cos(angle), length * torch.sin(angle)], 1)
        return pairs[:, :count].reshape(-1, *shape)

    def whole(self, low: int, high: int | Tensor, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high`, the latter left out: int64 (n, *shape)."""
        return torch.floor(self.uniform(*shape) * (high - low)).long() + low


def _scrambled(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)).mul_(_FIRST)
    x = (x ^ _shifted(x, 27)).mul_(_SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Bits moved to the right, zeros after them (torch would repeat the sign)."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)
