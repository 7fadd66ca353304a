"""Read a small image folder into arrays with Pillow only. Training uses the faster `lcrbnn.data.loading`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.data.image_files.crop_boxes import center_crop_box, center_offset, compute_resized_size, is_too_long
from lcrbnn.data.image_files.decode import decode_rgb, open_image
from lcrbnn.data.image_files.image_folder import ImageFolder
from lcrbnn.data.image_files.image_index import BrokenImage, ImageIndex, ImageReader
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import InputError

MAX_ARRAY_BYTES = 8 << 30
# Largest crop offset in pixels; at larger offsets, Pillow's float32 arithmetic loses fractions of a pixel
MAX_EXACT_OFFSET = 1 << 16


def read_image_arrays(
    find_folder: Callable[[Path], ImageFolder],
    folder: Path,
    *,
    image_size: int,
    resize_ratio: float,
    skip_broken: bool = False,
) -> ImageArrays:
    """Return the centre crops of an image folder, uint8 (n, 3, image_size, image_size).

    A broken image raises InputError, or is left out with `skip_broken`. Each split is read at its first access.
    """
    image_folder = find_folder(folder)

    def read(image_index: ImageIndex) -> Split:
        return _read_split(image_index, folder, image_size, resize_ratio, skip_broken)

    def divide_train() -> tuple[Split, Split]:
        train, valid = image_folder.split_validation(0)
        return read(train), read(valid)

    return ImageArrays(
        partial(read, image_folder.train),
        partial(read, image_folder.test),
        None if image_folder.picture_split is None else divide_train,
    )


def _read_split(
    image_index: ImageIndex, folder: Path, image_size: int, resize_ratio: float, skip_broken: bool
) -> Split:
    num_bytes = len(image_index) * 3 * image_size**2
    if num_bytes > MAX_ARRAY_BYTES:
        raise InputError(
            f"{len(image_index):,} images in {folder} take {num_bytes / 1e9:.0f} GB as arrays; this command loads all "
            f"images and allows at most {MAX_ARRAY_BYTES / 1e9:.0f} GB (lcrbnn train and eval read them in batches)"
        )
    images = np.empty((len(image_index), 3, image_size, image_size), np.uint8)
    is_readable = np.ones(len(image_index), bool)
    reader = ImageReader()
    for row in range(len(image_index)):
        location = image_index[row]
        try:
            images[row] = decode_and_center_crop(reader.read(location), image_size, resize_ratio).transpose(2, 0, 1)
        except BrokenImage as error:
            if not skip_broken:
                raise InputError(f"{location.name} is broken: {error}") from None
            is_readable[row] = False
    reader.close()
    split = Split(images, image_index.labels)
    return split if is_readable.all() else split.take(np.flatnonzero(is_readable))


def resize_box(image: Any, region: tuple[float, float, float, float], image_size: int) -> np.ndarray:
    """Resize a region (left, top, width, height) to (image_size, image_size, 3) with Pillow.

    The region can begin and end at fractions of a pixel. Far from the origin, the image is first cropped to the
    region and its neighbourhood, because the float32 arithmetic of Pillow would lose the fractions.
    """
    from PIL import Image

    left, top, width, height = region
    if max(left, top) > MAX_EXACT_OFFSET:
        # Number of extra pixels on each side; it is at least the radius of the resize filter
        support = math.ceil(max(width, height) / image_size) + 2
        x, y = max(0, math.floor(left) - support), max(0, math.floor(top) - support)
        right, bottom = x + math.ceil(width) + 2 * support, y + math.ceil(height) + 2 * support
        image = image.crop((x, y, min(right, image.width), min(bottom, image.height)))
        left, top = left - x, top - y
    box = (left, top, min(left + width, image.width), min(top + height, image.height))
    return np.asarray(image.resize((image_size, image_size), Image.Resampling.BILINEAR, box=box))


def decode_and_center_crop(content: bytes, image_size: int, resize_ratio: float) -> np.ndarray:
    """Decode an image file, resize it with Pillow and return the centre crop (image_size, image_size, 3)."""
    return resize_and_center_crop(decode_rgb(open_image(content)), image_size, resize_ratio)


def resize_and_center_crop(image: Any, image_size: int, resize_ratio: float) -> np.ndarray:
    """Resize a decoded image and return its centre crop (image_size, image_size, channels)."""
    from PIL import Image

    if is_too_long(*image.size):
        return resize_box(image, center_crop_box(image.width, image.height, image_size, resize_ratio), image_size)
    resized_width, resized_height = compute_resized_size(image.width, image.height, image_size, resize_ratio)
    if image.size != (resized_width, resized_height):
        image = image.resize((resized_width, resized_height), Image.Resampling.BILINEAR)
    left, top = center_offset(resized_width, resized_height, image_size)
    return np.asarray(image)[top : top + image_size, left : left + image_size]
