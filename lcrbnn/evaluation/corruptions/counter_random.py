"""Random numbers for corruptions.

They depend on the position of an image in its split and are equal on every device.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lcrbnn.evaluation.corruptions.frost_photos import FrostPhotos


def _to_signed(value: int) -> int:
    """Return the int64 value that has the same bits as an unsigned 64-bit value."""
    return value - (1 << 64) if value >> 63 else value


# Constants of SplitMix64 (Steele, Lea and Flood), which scrambles the bits of a counter. Sums and products of int64
# wrap around.
_COUNTER_STEP = _to_signed(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = _to_signed(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = _to_signed(0x94D049BB133111EB)


class ImageRandom:
    """Random number generator of a batch of images.

    The numbers depend only on the key, the index of the image and the number of earlier draws. They do not depend on
    the batch, the worker or the device. `photos` are the photos for the corruption frost.
    """

    def __init__(self, key: str, indices: Tensor, photos: FrostPhotos | None = None) -> None:
        """Start from a key that names the purpose, and from the index of each image in its split, (n,)."""
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
        self.start_states = _scramble_bits(indices.long() * _COUNTER_STEP + _to_signed(start))
        self.num_drawn = 0
        self.photos = photos

    def random_bits(self, *shape: int) -> Tensor:
        """Return 64 random bits per entry, int64 (n, *shape)."""
        count = math.prod(shape)
        counter = (
            torch.arange(self.num_drawn + 1, self.num_drawn + count + 1, device=self.start_states.device)
            * _COUNTER_STEP
        )
        self.num_drawn += count
        return _scramble_bits(self.start_states[:, None] + counter).view(-1, *shape)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform numbers in [0, 1), float64 (n, *shape)."""
        return _shift_right(self.random_bits(*shape), 11).double() * 2.0**-53

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float64 (n, *shape), with the Box-Muller transform."""
        count = math.prod(shape)
        num_pairs = (count + 1) // 2
        radius = torch.sqrt(torch.log(1 - self.uniform(num_pairs)) * -2)
        angle = self.uniform(num_pairs) * (2 * math.pi)
        pairs = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
        return pairs[:, :count].reshape(-1, *shape)

    def integers(self, low: int, high: int | Tensor, *shape: int) -> Tensor:
        """Return uniform integers in [low, high), int64 (n, *shape)."""
        return torch.floor(self.uniform(*shape) * (high - low)).long() + low


def _scramble_bits(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)).mul_(_FIRST_MULTIPLIER)
    x = (x ^ _shift_right(x, 27)).mul_(_SECOND_MULTIPLIER)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, num_bits: int) -> Tensor:
    """Return the bits shifted to the right, filled with zeros. torch's own shift would repeat the sign bit."""
    return (x >> num_bits).bitwise_and_((1 << (64 - num_bits)) - 1)
