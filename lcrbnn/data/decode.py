"""From the bytes of an image file to RGB pixels by Pillow, under a stated policy: an image is right or Broken."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from lcrbnn.data.listing import Broken

MOST_PIXELS = 100_000_000  # an image of more is refused before it is decoded
PLAIN = ("1", "L", "P", "CMYK", "YCbCr")  # modes that Pillow turns into RGB with their scale kept
CLEAR = ("RGBA", "LA", "PA", "RGBa", "La")  # modes with alpha
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")  # grey of 16 bits
FULL = 65535  # white in 16 bits


def open_picture(content: bytes) -> Any:
    """The picture in these bytes, its header read and nothing decoded; Broken if there is none, or a giant one."""
    from PIL import Image

    if not content:
        raise Broken("it is empty")
    try:
        picture = Image.open(io.BytesIO(content))
    except Image.DecompressionBombError:
        raise Broken(f"it has more than {MOST_PIXELS:,} pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever their parsing meets
        raise Broken(_why(error)) from None
    if picture.width * picture.height > MOST_PIXELS:
        raise Broken(f"it has {picture.width} x {picture.height} pixels; the most is {MOST_PIXELS:,}")
    return picture


def reduced(picture: Any, times: int) -> int:
    """Let a JPEG be decoded at 1/2, 1/4 or 1/8 of its size, never below 1/times; by how much it will be smaller."""
    by = max(scale for scale in (1, 2, 4, 8) if scale <= max(times, 1))
    if by == 1 or picture.format != "JPEG":
        return 1
    wide = picture.width
    picture.draft(None, (wide // by, picture.height // by))
    return round(wide / picture.width)


def pixels(picture: Any) -> Any:
    """The picture in Pillow's mode RGB, decoded; Broken if that fails, or if its values have no known scale.

    Grey, palettes and CMYK as Pillow converts them; 16 bits are rounded to 8; what is transparent is shown on black.
    Neither colour profiles nor a camera's orientation are applied, as in the usual protocol.
    """
    try:
        picture.load()
        return _rgb(picture)
    except (Broken, MemoryError):
        raise
    except Exception as error:  # as above
        raise Broken(_why(error)) from None


def _rgb(picture: Any) -> Any:
    from PIL import Image

    mode = picture.mode
    if mode in CLEAR or (mode in ("1", "L", "P", "RGB") and "transparency" in picture.info):
        shown = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", shown.size, (0, 0, 0, 255)), shown).convert("RGB")
    if mode == "RGB":
        return picture
    if mode in PLAIN:
        return picture.convert("RGB")
    if mode in DEEP or (mode == "I" and picture.format == "PNG"):  # older Pillow calls a PNG's 16 bits I
        grey = np.asarray(picture).astype(np.int64)
        return Image.fromarray(((grey * 255 + FULL // 2) // FULL).astype(np.uint8)).convert("RGB")
    raise Broken(f"its pixels are of Pillow's mode {mode}, which has no known scale")


def _why(error: Exception) -> str:
    """What Pillow says of it, in one line."""
    said = " ".join(str(error).split())
    if "cannot identify image file" in said:
        return "it is no image that Pillow knows"
    return f"it cannot be decoded ({said[:200] or type(error).__name__})"
