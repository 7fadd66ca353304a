"""Pictures from disk as a model's pixels: any size, any mode that Pillow reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lcrbnn.data.decode import open_picture, orientation, pixels
from lcrbnn.data.listing import Broken, read_file
from lcrbnn.data.pixels import middle_square
from lcrbnn.data.walk import PICTURES
from lcrbnn.engine import Model
from lcrbnn.engine.reference import scale_pixels
from lcrbnn.errors import InputError

MODES = {1: "L", 3: "RGB"}  # by the channels of a model
TURNS = {  # by the value of the EXIF tag for the orientation of the camera: what turns a picture back
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


class Unreadable(InputError):
    """A picture that is there and cannot be read."""


def find_pictures(places: Iterable[Path]) -> list[Path]:
    """The files named, and the pictures in the folders named, in the order of their names."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(p for p in place.rglob("*") if _is_picture(p.relative_to(place)) and p.is_file())
            if not inside:
                raise InputError(f"there is no picture in {place}; looked for {', '.join(PICTURES)}")
            found += inside
        elif place.exists():
            found.append(place)
        else:
            raise InputError(f"there is no picture {place}")
    return found


def _is_picture(path: Path) -> bool:
    """By its name; hidden files and folders are passed over."""
    return path.suffix.lower() in PICTURES and not any(part.startswith(".") for part in path.parts)


def check_channels(model: Model) -> None:
    """Raise if a model takes no pictures."""
    if model.shape[2] not in MODES:
        raise InputError(f"pictures have 1 or 3 channels, and this model takes {model.shape[2]}")


def read_picture(path: Path, model: Model) -> np.ndarray:
    """The pixels of a picture, (h, w, c), from 0 to the model's top: read and cut as images of the data set are.

    That is, by lcrbnn.data.decode, and the middle by the model's margin; but a picture turned by its camera is turned
    back.
    """
    from PIL import Image, ImageOps

    height, width, channels = model.shape
    check_channels(model)
    try:
        picture = open_picture(read_file(path))
        turned = TURNS.get(orientation(picture))
        plain = pixels(picture).convert(MODES[channels])
    except Broken as error:
        raise Unreadable(f"{path} is no picture that can be read: {error}") from None
    except OSError as error:
        raise Unreadable(f"{path} is no picture that can be read: {error.strerror or error}") from None
    if turned is not None:
        plain = plain.transpose(Image.Transpose[turned])
    if width == height:
        cut = middle_square(plain, height, model.margin)
    else:
        wide, high = round(width * model.margin), round(height * model.margin)
        left, top = (wide - width) // 2, (high - height) // 2
        fitted = np.asarray(ImageOps.fit(plain, (wide, high), Image.Resampling.BILINEAR))
        cut = fitted[top : top + height, left : left + width]
    return scale_pixels(model, cut.reshape(height, width, channels))


def batches(
    paths: Iterable[Path], model: Model, size: int, broken: Callable[[Unreadable], None] | None = None
) -> Iterator[tuple[list[Path], np.ndarray]]:
    """Some pictures at a time, as pixels (n, h, w, c). One that cannot be read is left out if `broken` hears of it."""
    some: list[Path] = []
    shown: list[np.ndarray] = []
    for path in paths:
        try:
            shown.append(read_picture(path, model))
        except Unreadable as error:
            if broken is None:
                raise
            broken(error)
            continue
        some.append(path)
        if len(some) == size:
            yield some, np.stack(shown)
            some, shown = [], []
    if some:
        yield some, np.stack(shown)
