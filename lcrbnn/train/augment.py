"""Crop, mirror and normalise as batched tensor code, on whatever device the images are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.train.seeds import generator

PAD = 4  # pixels of black on each side


class Draws(NamedTuple):
    """For each image: rows and columns that the crop is moved by, from 0 to 2 PAD, and whether it is mirrored."""

    down: Tensor
    right: Tensor
    mirrored: Tensor


def draw(seed: int, epoch: int, count: int) -> Draws:
    """The draws of an epoch, an entry for each place in its order."""
    source = generator(seed, "augment", epoch)
    moves = torch.randint(0, 2 * PAD + 1, (2, count), generator=source)
    return Draws(moves[0], moves[1], torch.randint(0, 2, (count,), generator=source).bool())


def crop_flip(images: Tensor, draws: Draws) -> Tensor:
    """(n, c, h, w) of any type -> the same shape: black around each image, a window of it, mirrored or not."""
    n, c, h, w = images.shape
    wide = F.pad(images, (PAD, PAD, PAD, PAD))
    column = torch.arange(w, device=images.device)
    column = torch.where(draws.mirrored[:, None], w - 1 - column, column) + draws.right[:, None]
    row = torch.arange(h, device=images.device) + draws.down[:, None]
    which = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(c, device=images.device)[None, :, None, None]
    return wide[which, channel, row[:, None, :, None], column[:, None, None, :]]


def normalize(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """uint8 (n, c, h, w) -> float32: x * scale + shift, a channel each."""
    return torch.addcmul(shift, images.float(), scale)


AUGMENT: dict[str, Callable[[Tensor, Draws], Tensor]] = {
    "none": lambda images, draws: images,
    "crop-flip": crop_flip,
    "resized-crop": lambda images, draws: images,  # done where images are read from files
}
READ_SO = ("resized-crop",)  # augmentations that need the whole image, so that only a reading process can do them
