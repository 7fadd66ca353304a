"""Hue, saturation and value, as scikit-image computes them, bit by bit."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.corrupt.pixels import over


def to_hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(n, 3, h, w) from 0 to 1 -> hue, saturation, value, each (n, h, w) from 0 to 1."""
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    spread = value - x.amin(1)
    gray = spread == 0
    safe = spread.masked_fill(gray, 1.0)
    hue = torch.where(red == value, (green - blue) / safe, 0.0)
    hue = torch.where(green == value, (blue - red) / safe + 2, hue)
    hue = torch.where(blue == value, (red - green) / safe + 4, hue)
    hue = over(hue, 6)
    hue = torch.where(hue < 0, hue + 1, hue).masked_fill(gray, 0.0)
    saturation = (spread / value.masked_fill(gray, 1.0)).masked_fill(gray, 0.0)
    return hue, saturation, value


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The way back."""
    sixth = hue * 6
    whole = torch.floor(sixth)
    share = sixth - whole
    dark = value * (1 - saturation)
    falling = value * (1 - share * saturation)
    rising = value * (1 - (1 - share) * saturation)
    which = (whole.long() % 6)[:, None]
    # For each sixth of the circle, which of (value, rising, falling, dark) red, green and blue are.
    table = torch.tensor([[0, 1, 3], [2, 0, 3], [3, 0, 1], [3, 2, 0], [1, 3, 0], [0, 3, 2]], device=hue.device)
    parts = torch.stack([value, rising, falling, dark], 1)
    return parts.gather(1, table[which[:, 0]].permute(0, 3, 1, 2))
