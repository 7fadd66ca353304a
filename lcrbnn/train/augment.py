"""Crop, mirror and normalise as batched tensor code, on whatever device the images are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.train.mixing import HOLE_NUMBERS, MIX_NUMBERS, ROW_NUMBERS, hole, mix, two_in_a_row
from lcrbnn.train.seeds import generator
from lcrbnn.train.zoom import ZOOM_NUMBERS, zoom

PAD = 4  # pixels of black on each side


class Draws(NamedTuple):
    """For each image: rows and columns that the crop is moved by, from 0 to 2 PAD, and whether it is mirrored.

    `numbers` holds what else an augmentation needs, uniform in [0, 1), a row an image; all 0, it changes nothing.
    """

    down: Tensor
    right: Tensor
    mirrored: Tensor
    numbers: Tensor

    def at(self, places: Tensor | slice) -> Draws:
        """Those of some places."""
        return Draws(*(one[places] for one in self))

    def to(self, device: torch.device) -> Draws:
        """The same on a device."""
        return Draws(*(one.to(device) for one in self))

    def still(self) -> None:
        """Fill in what leaves every image as it is."""
        self.down.fill_(PAD)
        self.right.fill_(PAD)
        self.mirrored.fill_(False)
        self.numbers.zero_()


def draw(seed: int, epoch: int, count: int, numbers: int = 0) -> Draws:
    """The draws of an epoch, an entry for each place in its order."""
    source = generator(seed, "augment", epoch)
    moves = torch.randint(0, 2 * PAD + 1, (2, count), generator=source)
    mirrored = torch.randint(0, 2, (count,), generator=source).bool()
    return Draws(moves[0], moves[1], mirrored, torch.rand(count, numbers, generator=source))


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
    """Pixels (n, c, h, w), uint8 or float32 -> float32: x * scale + shift, a channel each."""
    return torch.addcmul(shift, images.float(), scale)


class Augmentation(NamedTuple):
    """What happens to images, (n, c, h, w) -> (views n, c, h, w), and how many numbers it needs an image."""

    apply: Callable[[Tensor, Draws], Tensor]
    numbers: int = 0
    levels: int | None = None  # of a pixel, if it works with no others
    views: int = 1  # of each image, all first views first


def _then(change: Callable[[Tensor, Tensor], Tensor], numbers: int) -> Augmentation:
    return Augmentation(lambda images, draws: change(crop_flip(images, draws), draws.numbers), numbers, 256)


def _views(images: Tensor, draws: Draws) -> Tensor:
    """The crop as it is, and two mixtures made of it."""
    crops = crop_flip(images, draws)
    mixtures = mix(crops.repeat(2, 1, 1, 1), torch.cat(draws.numbers.chunk(2, 1)))
    return torch.cat([crops.float(), mixtures])


AUGMENT: dict[str, Augmentation] = {
    "none": Augmentation(lambda images, draws: images),
    "crop-flip": Augmentation(crop_flip),
    "resized-crop": Augmentation(lambda images, draws: images),  # done where images are read from files
    "zoom-flip": Augmentation(lambda images, draws: zoom(images, draws.numbers, draws.mirrored), ZOOM_NUMBERS),
    "cutout": _then(hole, HOLE_NUMBERS)._replace(levels=None),
    "randaugment": _then(two_in_a_row, ROW_NUMBERS),
    "augmix": _then(mix, MIX_NUMBERS),
    "augmix-views": Augmentation(_views, 2 * MIX_NUMBERS, 256, views=3),
}
READ_SO = ("resized-crop",)  # augmentations that need the whole image, so that only a reading process can do them
