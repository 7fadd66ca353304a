"""From the bytes of an image file to RGB pixels by Pillow, under a stated policy: an image is right or Broken."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.data.listing import Broken, read_file

MOST_PIXELS = 100_000_000  # an image of more is refused before it is decoded
PLAIN = ("1", "L", "P", "CMYK", "YCbCr")  # modes that Pillow turns into RGB with their scale kept
CLEAR = ("RGBA", "LA", "PA", "RGBa", "La")  # modes with alpha
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")  # grey of 16 bits
FULL = 65535  # white in 16 bits
BITS, MEANING, BLACK_IS_0 = 258, 262, 1  # of a TIFF file: two of its tags, and a value of the second
ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "PPM", "TIFF")  # no others: some start other programs
_PNG = b"\x89PNG\r\n\x1a\n"  # how such a file begins; chunks follow
_CHUNK = struct.Struct(">I4s")  # of each: bytes of its content, kind; after the content a CRC-32 of it and the kind


def open_picture(content: bytes) -> Any:
    """The picture in these bytes, its header read and nothing decoded; Broken if there is none, or a giant one."""
    from PIL import Image

    if not content:
        raise Broken("it is empty")
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)  # noqa: TID251  # the only call in the package
    except Image.DecompressionBombError:
        raise Broken(f"it has more than {MOST_PIXELS:,} pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever their parsing meets
        raise Broken(_why(error)) from None
    if picture.width * picture.height > MOST_PIXELS:
        raise Broken(f"it has {picture.width} x {picture.height} pixels; the most is {MOST_PIXELS:,}")
    if picture.format == "PNG":
        _check_png(content)
    if picture.format == "TIFF":
        _check_tiff(picture)
    return picture


def orientation(picture: Any) -> Any:
    """The value of the EXIF tag for the orientation of the camera, 1 if there is none; Broken if EXIF is damaged."""
    try:
        return picture.getexif().get(ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception as error:  # as in open_picture
        raise Broken(f"its EXIF data {_why(error).removeprefix('it ')}") from None


def load_picture(path: Path, *, drop_alpha: bool = False) -> Any:
    """The picture in a file, decoded to RGB; Broken if the file cannot be read or is not a picture."""
    try:
        content = read_file(path)
    except OSError as error:
        raise Broken(error.strerror or str(error)) from None
    return pixels(open_picture(content), drop_alpha=drop_alpha)


def _check_tiff(picture: Any) -> None:
    """Refuse grey of more than 8 bits that is not what Pillow takes it for: 16 bits, from black to white."""
    bits, meaning = picture.tag_v2.get(BITS, (1,)), picture.tag_v2.get(MEANING)
    if picture.mode in DEEP and (max(bits) != 16 or meaning != BLACK_IS_0):
        what = f"{max(bits)} bits a pixel" if max(bits) != 16 else "16 bits a pixel, 0 for white"
        raise Broken(f"it is a TIFF file with {what}, which Pillow takes for 16 bits with 0 for black")


def _check_png(content: bytes) -> None:
    """Compare the checksums of a PNG, for Pillow does not: after a wrong bit the rest of a picture may be black."""
    at, deep, kind = len(_PNG), False, b""
    while kind != b"IEND":
        if len(content) < at + 12:
            raise Broken("it cannot be decoded (it ends before its last chunk)")
        size, kind = _CHUNK.unpack_from(content, at)
        end = at + 8 + size
        sound = int.from_bytes(content[end : end + 4]) == zlib.crc32(content[at + 4 : end])
        if kind[:1].isupper() and not sound:  # what a decoder cannot do without
            raise Broken("it cannot be decoded (its bytes do not have the checksums that it promises)")
        if at == len(_PNG):  # the first chunk is IHDR; Pillow has checked that it is complete
            deep = content[at + 16] == 16
        if deep and kind == b"tRNS":
            raise Broken("it has a transparent colour of 16 bits a channel, which Pillow does not find")
        at = end + 4


def reduced(picture: Any, times: int) -> int:
    """Let a JPEG be decoded at 1/2, 1/4 or 1/8 of its size, never below 1/times; by how much it will be smaller."""
    by = max(scale for scale in (1, 2, 4, 8) if scale <= max(times, 1))
    if by == 1 or picture.format != "JPEG":
        return 1
    wide = picture.width
    picture.draft(None, (wide // by, picture.height // by))
    return round(wide / picture.width)


def pixels(picture: Any, *, drop_alpha: bool = False) -> Any:
    """The picture in Pillow's mode RGB, decoded; Broken if that fails, or if its values have no known scale.

    Grey, palettes and CMYK as Pillow converts them; 16 bits are rounded to 8; what is transparent is shown on black.
    With `drop_alpha` an alpha channel is ignored, as OpenCV does.
    Neither colour profiles nor a camera's orientation are applied, as in the usual protocol.
    """
    try:
        picture.load()
        return picture.convert("RGB") if drop_alpha and picture.mode in CLEAR else _rgb(picture)
    except (Broken, MemoryError):
        raise
    except Exception as error:  # as in open_picture
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
    if mode in DEEP or (mode == "I" and picture.format in ("PNG", "PPM")):  # 16 bits too, by some versions of Pillow
        grey = np.asarray(picture).astype(np.int64)
        return Image.fromarray(((grey * 255 + FULL // 2) // FULL).astype(np.uint8)).convert("RGB")
    raise Broken(f"its pixels are of Pillow's mode {mode}, which has no known scale")


def _why(error: Exception) -> str:
    """What Pillow says of it, in one line."""
    said = " ".join(str(error).split())
    if "cannot identify image file" in said:
        return "it is no image that Pillow knows"
    return f"it cannot be decoded ({said[:200] or type(error).__name__})"
