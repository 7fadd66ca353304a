"""Augmentations made of several operations: AugMix, two drawn ones in a row, and a hole.

Each reads its choices from numbers in [0, 1) that were drawn for the image; where all of them are 0 it changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.train.operations import OPERATIONS, STRONGEST, operate

CHAINS, LONGEST = 3, 3  # AugMix: chains, and operations in the longest
WEAK, STRONG = 0.1, 3.0  # its strengths
CHOICES = 3  # numbers an operation: which, how strong, which sign
MIX_NUMBERS = 1 + CHAINS * (2 + CHOICES * LONGEST)
ROW_NUMBERS = 2 * CHOICES
HOLE_NUMBERS = 3


def mix(images: Tensor, numbers: Tensor) -> Tensor:
    """AugMix (Hendrycks et al. 2020): three chains of 1 to 3 operations, mixed, and the mixture with the image.

    Weights of the chains are uniform over all that sum to 1, and so is the share of the mixture in the image: the
    paper's Dirichlet and Beta distributions of 1. uint8 (n, c, h, w) -> float32, not rounded.
    """
    share, rest = numbers[:, 0], numbers[:, 1:].unflatten(1, (CHAINS, -1))
    weights = -torch.log1p(-rest[..., 0])  # exponential, so that they are uniform once they sum to 1
    weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-12)
    depths = 1 + (rest[..., 1] * LONGEST).long()
    chains = images[:, None].expand(-1, CHAINS, -1, -1, -1).flatten(0, 1)
    choices = rest[..., 2:].unflatten(2, (LONGEST, CHOICES)).flatten(0, 1)
    for step in range(LONGEST):
        kind, strength, sign = choices[:, step].unbind(1)
        which = 1 + (kind * (len(OPERATIONS) - 1)).long()
        changed = operate(chains, which, WEAK + (STRONG - WEAK) * strength, sign >= 0.5)
        chains = torch.where((step < depths.flatten())[:, None, None, None], changed, chains)
    mixed = (chains.unflatten(0, (-1, CHAINS)).float() * weights[:, :, None, None, None]).sum(1)
    return torch.lerp(images.float(), mixed, share[:, None, None, None])


def two_in_a_row(images: Tensor, numbers: Tensor) -> Tensor:
    """Two operations of any strength, one after the other, each perhaps none (RandAugment, Cubuk et al. 2020)."""
    for choice in numbers.unflatten(1, (-1, CHOICES)).unbind(1):
        kind, strength, sign = choice.unbind(1)
        images = operate(images, (kind * len(OPERATIONS)).long(), STRONGEST * strength, sign >= 0.5)
    return images


def hole(images: Tensor, numbers: Tensor) -> Tensor:
    """A black square of half the side around any pixel (Cutout, DeVries and Taylor 2017)."""
    h, w = images.shape[2:]
    there, down, right = numbers.unbind(1)
    rows, columns = (torch.arange(side, device=images.device) for side in (h, w))
    top, left = ((share * side).long() - side // 4 for share, side in ((down, h), (right, w)))
    inside = [
        (line >= first[:, None]) & (line < first[:, None] + side // 2)
        for line, first, side in ((rows, top, h), (columns, left, w))
    ]
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :] & (there > 0)[:, None, None, None]
    return torch.where(square, torch.zeros_like(images), images)
