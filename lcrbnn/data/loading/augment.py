"""AUGMENTATIONS and normalisation, which both work on whole batches of tensors, on the device of the images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.data.loading.image_operations import (
    NUM_AUGMIX_NUMBERS,
    NUM_CUTOUT_NUMBERS,
    NUM_RANDAUGMENT_NUMBERS,
    augmix,
    cutout,
    rand_augment,
)
from lcrbnn.data.loading.random_resized_crop import NUM_RESIZED_CROP_NUMBERS, random_resized_crop
from lcrbnn.device import make_generator

CROP_PADDING = 4  # width of the black border that is added on each side before the crop, in pixels


class AugmentationDraws(NamedTuple):
    """Random draws per image, which are crop offsets (0 to 2 CROP_PADDING), a mirror flag, and random numbers.

    `random_numbers` (n, num_random_numbers) are uniform in [0, 1). With zeros, an augmentation does not change the
    image.
    """

    row_offsets: Tensor
    column_offsets: Tensor
    is_mirrored: Tensor
    random_numbers: Tensor

    def take(self, positions: Tensor | slice) -> AugmentationDraws:
        """Return the draws of the images at these positions."""
        return AugmentationDraws(*(tensor[positions] for tensor in self))

    def to(self, device: torch.device) -> AugmentationDraws:
        """Return the draws on a device."""
        return AugmentationDraws(*(tensor.to(device) for tensor in self))

    def set_identity(self) -> None:
        """Overwrite the draws with values that leave every image unchanged."""
        self.row_offsets.fill_(CROP_PADDING)
        self.column_offsets.fill_(CROP_PADDING)
        self.is_mirrored.fill_(False)
        self.random_numbers.zero_()


def draw_augmentation(seed: int, epoch: int, count: int, num_random_numbers: int = 0) -> AugmentationDraws:
    """Return the random draws of an epoch, for `count` positions in its order of images."""
    generator = make_generator(seed, "augment", epoch)
    offsets = torch.randint(0, 2 * CROP_PADDING + 1, (2, count), generator=generator)
    is_mirrored = torch.randint(0, 2, (count,), generator=generator).bool()
    random_numbers = torch.rand(count, num_random_numbers, generator=generator)
    return AugmentationDraws(offsets[0], offsets[1], is_mirrored, random_numbers)


def crop_flip(images: Tensor, draws: AugmentationDraws) -> Tensor:
    """Return images (n, c, h, w) that are padded with black, then cropped to their original size.

    Some are also mirrored.
    """
    n, c, h, w = images.shape
    padded = F.pad(images, (CROP_PADDING, CROP_PADDING, CROP_PADDING, CROP_PADDING))
    columns = torch.arange(w, device=images.device)
    columns = torch.where(draws.is_mirrored[:, None], w - 1 - columns, columns) + draws.column_offsets[:, None]
    rows = torch.arange(h, device=images.device) + draws.row_offsets[:, None]
    image_numbers = torch.arange(n, device=images.device)[:, None, None, None]
    channels = torch.arange(c, device=images.device)[None, :, None, None]
    return padded[image_numbers, channels, rows[:, None, :, None], columns[:, None, None, :]]


def normalize(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return images (n, c, h, w) as float32, with each channel multiplied by its scale and shifted.

    The input is uint8 or float32.
    """
    return torch.addcmul(shift, images.float(), scale)


class Augmentation(NamedTuple):
    """A function that augments images, and the number of random numbers that this function needs per image.

    It maps (n, c, h, w) to (num_views * n, c, h, w).
    """

    apply: Callable[[Tensor, AugmentationDraws], Tensor]
    num_random_numbers: int = 0
    # Required number of levels per pixel value (256 for uint8); None = any number of levels
    required_levels: int | None = None
    # Number of augmented versions per image; the output has the first versions of all images, then the second ones
    num_views: int = 1


def _after_crop_flip(operation: Callable[[Tensor, Tensor], Tensor], num_random_numbers: int) -> Augmentation:
    def apply(images: Tensor, draws: AugmentationDraws) -> Tensor:
        return operation(crop_flip(images, draws), draws.random_numbers)

    return Augmentation(apply, num_random_numbers, 256)


def _make_augmix_views(images: Tensor, draws: AugmentationDraws) -> Tensor:
    """Return three views of each image. The first view is its crop, the others are AugMix mixtures of the crop."""
    crops = crop_flip(images, draws)
    mixtures = augmix(crops.repeat(2, 1, 1, 1), torch.cat(draws.random_numbers.chunk(2, 1)))
    return torch.cat([crops.float(), mixtures])


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(lambda images, draws: images),
    "crop-flip": Augmentation(crop_flip),
    # cropping and mirroring are done by the data-loading workers
    "random-resized-crop": Augmentation(lambda images, draws: images),
    "random-resized-crop-on-device": Augmentation(
        lambda images, draws: random_resized_crop(images, draws.random_numbers, draws.is_mirrored),
        NUM_RESIZED_CROP_NUMBERS,
    ),
    "cutout": _after_crop_flip(cutout, NUM_CUTOUT_NUMBERS)._replace(required_levels=None),
    "randaugment": _after_crop_flip(rand_augment, NUM_RANDAUGMENT_NUMBERS),
    "augmix": _after_crop_flip(augmix, NUM_AUGMIX_NUMBERS),
    "augmix-views": Augmentation(_make_augmix_views, 2 * NUM_AUGMIX_NUMBERS, 256, num_views=3),
}
# These augmentations crop from the full-size image file. So the data-loading workers apply them.
CROPPED_ON_READ = ("random-resized-crop",)
