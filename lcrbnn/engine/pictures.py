"""Pictures from disk as a model's pixels: any size, any mode that Pillow reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lcrbnn.engine import Model
from lcrbnn.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MOST_PIXELS = 100_000_000  # a picture of more is refused before it is decoded
MODES = {1: "L", 3: "RGB"}  # by the channels of a model


def find_pictures(places: Iterable[Path]) -> list[Path]:
    """The files named, and the pictures in the folders named, in the order of their names."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise InputError(f"there is no picture in {place}; looked for {', '.join(SUFFIXES)}")
            found += inside
        elif place.exists():
            found.append(place)
        else:
            raise InputError(f"there is no picture {place}")
    return found


def read_picture(path: Path, model: Model) -> np.ndarray:
    """The pixels of a picture, (h, w, c), from 0 to the model's top: scaled to cover the model's input, centre kept.

    Transparent parts are shown on black; a picture turned by its camera is turned back.
    """
    from PIL import Image, ImageOps

    height, width, channels = model.shape
    if channels not in MODES:
        raise InputError(f"pictures have 1 or 3 channels, and this model takes {channels}")
    try:
        with Image.open(path) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise InputError(f"{path} has {picture.width} x {picture.height} pixels; the most is {MOST_PIXELS:,}")
            upright = ImageOps.exif_transpose(picture)
            if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
                clear = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", clear.size, (0, 0, 0, 255)), clear)
            plain = upright.convert(MODES[channels])
            if plain.size != (width, height):
                plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, np.float32).reshape(height, width, channels)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no picture that can be read: {error}") from None
    return pixels * np.float32(model.top / 255)


def batches(paths: list[Path], model: Model, size: int) -> Iterator[tuple[list[Path], np.ndarray]]:
    """Some pictures at a time, as pixels (n, h, w, c)."""
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        yield some, np.stack([read_picture(path, model) for path in some])
