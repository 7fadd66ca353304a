"""Read a user's pictures as input pixels of a model. All sizes and all modes that Pillow reads are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lcrbnn.data.image_files.decode import decode_rgb, open_image, read_orientation
from lcrbnn.data.image_files.image_index import BrokenImage, read_file
from lcrbnn.data.image_files.read_arrays import resize_and_center_crop
from lcrbnn.data.image_files.walk import IMAGE_SUFFIXES
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.reference import scale_pixels
from lcrbnn.errors import InputError

PIL_MODES = {1: "L", 3: "RGB"}  # dictionary from the number of channels of a model to the Pillow mode of its pictures
EXIF_TRANSPOSES = {  # dictionary from an EXIF orientation to the Pillow transpose that makes the picture upright
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


class UnreadablePicture(InputError):
    """A picture file that exists but cannot be read."""


def find_pictures(paths: Iterable[Path]) -> list[Path]:
    """Return the given files and the pictures inside the given folders, sorted by name within each folder."""
    pictures: list[Path] = []
    for path in paths:
        if path.is_dir():
            folder_pictures = sorted(
                p for p in path.rglob("*") if _has_picture_name(p.relative_to(path)) and p.is_file()
            )
            if not folder_pictures:
                raise InputError(f"there is no picture in {path}; looked for {', '.join(IMAGE_SUFFIXES)}")
            pictures += folder_pictures
        elif path.exists():
            pictures.append(path)
        else:
            raise InputError(f"there is no picture {path}")
    return pictures


def _has_picture_name(path: Path) -> bool:
    """Return whether a name is that of a picture. Names of hidden files, or in hidden folders, are not."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not any(part.startswith(".") for part in path.parts)


def check_model_channels(model: BnnModel) -> None:
    """Raise InputError unless the model has 1 or 3 input channels."""
    if model.shape[2] not in PIL_MODES:
        raise InputError(f"pictures have 1 or 3 channels, but the input of this model has {model.shape[2]} channels")


def read_picture(path: Path, model: BnnModel) -> np.ndarray:
    """Return the pixels of a picture, (h, w, c), in the model's range from 0 to `top`.

    Decoding and the centre crop are the same as for images of a data set (lcrbnn.data.image_files). In addition, the
    EXIF orientation is applied, so that photos of a camera are upright.
    """
    from PIL import Image, ImageOps

    height, width, channels = model.shape
    check_model_channels(model)
    try:
        picture = open_image(read_file(path))
        transpose_name = EXIF_TRANSPOSES.get(read_orientation(picture))
        image = decode_rgb(picture).convert(PIL_MODES[channels])
    except BrokenImage as error:
        raise UnreadablePicture(f"{path} cannot be read as a picture: {error}") from None
    except OSError as error:
        raise UnreadablePicture(f"{path} cannot be read as a picture: {error.strerror or error}") from None
    if transpose_name is not None:
        image = image.transpose(Image.Transpose[transpose_name])
    if width == height:
        cropped = resize_and_center_crop(image, height, model.margin)
    else:
        resized_width, resized_height = round(width * model.margin), round(height * model.margin)
        left, top = (resized_width - width) // 2, (resized_height - height) // 2
        resized = np.asarray(ImageOps.fit(image, (resized_width, resized_height), Image.Resampling.BILINEAR))
        cropped = resized[top : top + height, left : left + width]
    return scale_pixels(model, cropped.reshape(height, width, channels))


def iter_picture_batches(
    paths: Iterable[Path],
    model: BnnModel,
    batch_size: int,
    on_unreadable: Callable[[UnreadablePicture], None] | None = None,
) -> Iterator[tuple[list[Path], np.ndarray]]:
    """Yield the paths and pixels, (n, h, w, c), of up to `batch_size` pictures at a time.

    A picture that cannot be read is passed to `on_unreadable` and skipped; without that function it raises.
    """
    batch_paths: list[Path] = []
    batch_pixels: list[np.ndarray] = []
    for path in paths:
        try:
            batch_pixels.append(read_picture(path, model))
        except UnreadablePicture as error:
            if on_unreadable is None:
                raise
            on_unreadable(error)
            continue
        batch_paths.append(path)
        if len(batch_paths) == batch_size:
            yield batch_paths, np.stack(batch_pixels)
            batch_paths, batch_pixels = [], []
    if batch_paths:
        yield batch_paths, np.stack(batch_pixels)
