"""RandomResizedCrop for batches of square images on a device.

The crops have the same distribution as in `lcrbnn.data.image_files.crop_boxes`. Only the meaning of the random numbers
differs: if all of them are zero, the crop is the whole image.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn.data.image_files.crop_boxes import ASPECT_RATIO_RANGE, CROP_AREA_RANGE, MAX_CROP_TRIES

NUM_RESIZED_CROP_NUMBERS = 4 * MAX_CROP_TRIES


class CropBoxes(NamedTuple):
    """One rectangle per image in whole pixels. Each field has shape (n,)."""

    left: Tensor
    top: Tensor
    width: Tensor
    height: Tensor


def compute_crop_boxes(random_numbers: Tensor, image_size: int) -> CropBoxes:
    """Return one crop box per square image for random numbers (n, NUM_RESIZED_CROP_NUMBERS) in [0, 1).

    Several boxes are tried, and the first one that fits into the image is used. If none fits, the crop is the whole
    image. The computation uses float64, so that all devices round the sides of a crop in the same way.
    """
    area, shape, across, down = random_numbers.double().unflatten(1, (MAX_CROP_TRIES, 4)).unbind(2)
    crop_area = image_size**2 * (CROP_AREA_RANGE[1] - (CROP_AREA_RANGE[1] - CROP_AREA_RANGE[0]) * area)
    # The shift by 0.5 maps the random number 0 to the aspect ratio 1. The range of ratios is symmetric: 3/4 = 1 /
    # (4/3).
    ratio = torch.exp(math.log(ASPECT_RATIO_RANGE[1]) * (2 * ((shape + 0.5) % 1.0) - 1))
    width, height = (crop_area * ratio).sqrt().round(), (crop_area / ratio).sqrt().round()
    fits = (width <= image_size) & (height <= image_size) & (width > 0) & (height > 0)
    tries = torch.arange(MAX_CROP_TRIES, device=random_numbers.device)
    first_fit = torch.where(fits, tries, MAX_CROP_TRIES).amin(1)
    has_no_fit, chosen = first_fit == MAX_CROP_TRIES, first_fit.clamp_max(MAX_CROP_TRIES - 1)[:, None]
    box_width, box_height = (
        torch.where(has_no_fit, image_size, sizes.gather(1, chosen)[:, 0]) for sizes in (width, height)
    )
    left, top = (
        torch.minimum((fractions.gather(1, chosen)[:, 0] * (image_size - size + 1)).floor(), image_size - size)
        for fractions, size in ((across, box_width), (down, box_height))
    )
    return CropBoxes(left, top, box_width, box_height)


def random_resized_crop(images: Tensor, random_numbers: Tensor, is_mirrored: Tensor) -> Tensor:
    """Return random crops of uint8 images (n, c, side, side), resized bilinearly to the same shape.

    Some are mirrored.
    """
    n, c, side, _ = images.shape
    box = compute_crop_boxes(random_numbers, side)
    left, right, fraction_x = _find_neighbours(box.left, box.width, side)
    left, right, fraction_x = (
        torch.where(is_mirrored[:, None], values.flip(1), values) for values in (left, right, fraction_x)
    )
    upper, lower, fraction_y = _find_neighbours(box.top, box.height, side)
    image_numbers = torch.arange(n, device=images.device)[:, None, None, None]
    channels = torch.arange(c, device=images.device)[None, :, None, None]

    def interpolate_rows(rows: Tensor) -> Tensor:
        row_index = rows[:, None, :, None]
        left_pixels, right_pixels = (
            images[image_numbers, channels, row_index, columns[:, None, None, :]].float() for columns in (left, right)
        )
        return torch.lerp(left_pixels, right_pixels, fraction_x[:, None, None, :])

    value = torch.lerp(interpolate_rows(upper), interpolate_rows(lower), fraction_y[:, None, :, None])
    return (value + 0.5).floor().to(torch.uint8)


def _find_neighbours(start: Tensor, size: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two nearest input pixels for each of `side` output pixels of an axis, and the distance to the first.

    A crop is never larger than the image. So bilinear interpolation needs only two pixels per axis.
    """
    last = (size - 1)[:, None]
    positions = (torch.arange(side, device=size.device) + 0.5) * (size / side)[:, None] - 0.5
    positions = torch.minimum(positions.clamp_min(0), last)
    low = positions.floor()
    high = torch.minimum(low + 1, last)
    return (start[:, None] + low).long(), (start[:, None] + high).long(), (positions - low).float()
