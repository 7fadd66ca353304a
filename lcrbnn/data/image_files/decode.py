"""Decode image files to RGB with Pillow. An image is decoded correctly or raises BrokenImage."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.data.image_files.image_index import BrokenImage, read_file

MAX_PIXELS = 100_000_000  # maximum number of pixels; a larger image counts as broken and is not decoded
OPAQUE_MODES = ("1", "L", "P", "CMYK", "YCbCr")  # Pillow modes that Pillow converts to RGB with the correct scale
ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
GREY16_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
MAX_UINT16 = 65535
TIFF_BITS_PER_SAMPLE, TIFF_PHOTOMETRIC = 258, 262  # numbers of two TIFF tags
BLACK_IS_ZERO = 1  # value of the tag TIFF_PHOTOMETRIC if 0 means black
EXIF_ORIENTATION = 0x0112  # number of the EXIF tag for the orientation
# Image formats that are read; Pillow runs programs for some others
ALLOWED_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "PPM", "TIFF")
# First bytes of a PNG file, before its chunks (header, content, CRC-32 of type and content)
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK_HEADER = struct.Struct(">I4s")  # header of a PNG chunk: size of the content in bytes, type


def open_image(content: bytes) -> Any:
    """Open an image without decoding pixels. Raise BrokenImage for a damaged image or one with more than MAX_PIXELS."""
    from PIL import Image

    if not content:
        raise BrokenImage("it is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=ALLOWED_FORMATS)  # noqa: TID251  # the only call in the package
    except Image.DecompressionBombError:
        raise BrokenImage(f"it has more than {MAX_PIXELS:,} pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # the parsers of Pillow raise errors of many types
        raise BrokenImage(_explain_error(error)) from None
    if image.width * image.height > MAX_PIXELS:
        raise BrokenImage(f"it has {image.width} x {image.height} pixels; at most {MAX_PIXELS:,} are allowed")
    if image.format == "PNG":
        _check_png(content)
    if image.format == "TIFF":
        _check_tiff(image)
    return image


def read_orientation(image: Any) -> Any:
    """Return the EXIF orientation (1 if an image has none). Raise BrokenImage if the EXIF data are damaged."""
    try:
        return image.getexif().get(EXIF_ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception as error:  # the parsers of Pillow raise errors of many types
        raise BrokenImage(f"its EXIF data {_explain_error(error).removeprefix('it ')}") from None


def load_image(path: Path, *, drop_alpha: bool = False) -> Any:
    """Read a file and decode it to RGB. Raise BrokenImage if the file is unreadable or not an image."""
    try:
        content = read_file(path)
    except OSError as error:
        raise BrokenImage(error.strerror or str(error)) from None
    return decode_rgb(open_image(content), drop_alpha=drop_alpha)


def _check_tiff(image: Any) -> None:
    """Raise BrokenImage if Pillow would wrongly read the grey values of a TIFF file as 16 bits with black = 0."""
    bits, photometric = image.tag_v2.get(TIFF_BITS_PER_SAMPLE, (1,)), image.tag_v2.get(TIFF_PHOTOMETRIC)
    if image.mode in GREY16_MODES and (max(bits) != 16 or photometric != BLACK_IS_ZERO):
        actual_format = f"{max(bits)} bits per pixel" if max(bits) != 16 else "16 bits per pixel and white = 0"
        raise BrokenImage(f"it is a TIFF file with {actual_format}, which Pillow reads as 16 bits with black = 0")


def _check_png(content: bytes) -> None:
    """Raise BrokenImage if a PNG is cut short or a checksum is wrong.

    Pillow does not check this, and after a wrong bit it can decode the rest of the image as black.
    """
    offset, has_16_bits, chunk_type = len(_PNG_SIGNATURE), False, b""
    while chunk_type != b"IEND":
        if len(content) < offset + 12:
            raise BrokenImage("it cannot be decoded (it ends before its last chunk)")
        size, chunk_type = _CHUNK_HEADER.unpack_from(content, offset)
        end = offset + 8 + size
        has_valid_checksum = int.from_bytes(content[end : end + 4]) == zlib.crc32(content[offset + 4 : end])
        # A chunk type with a capital first letter; a decoder can skip the other chunks
        is_critical = chunk_type[:1].isupper()
        if is_critical and not has_valid_checksum:
            raise BrokenImage("it cannot be decoded (its bytes do not match its checksums)")
        if offset == len(_PNG_SIGNATURE):  # the first chunk is IHDR; Pillow has checked that it is complete
            has_16_bits = content[offset + 16] == 16
        if has_16_bits and chunk_type == b"tRNS":
            raise BrokenImage("it has a transparent colour of 16 bits per channel, which Pillow ignores")
        offset = end + 4


def set_draft_size(image: Any, max_reduction: int) -> int:
    """Let Pillow decode a JPEG at 1/2, 1/4 or 1/8 of its size, at least 1/max_reduction. Return the reduction."""
    reduction = max(scale for scale in (1, 2, 4, 8) if scale <= max(max_reduction, 1))
    if reduction == 1 or image.format != "JPEG":
        return 1
    full_width = image.width
    image.draft(None, (full_width // reduction, image.height // reduction))
    return round(full_width / image.width)


def decode_rgb(image: Any, *, drop_alpha: bool = False) -> Any:
    """Decode an image to Pillow's mode RGB. Raise BrokenImage for damaged data and for values of unknown scale.

    Pillow converts grey, palettes and CMYK. Values of 16 bits are rounded to 8. Transparent pixels are drawn on black.
    With `drop_alpha` the alpha channel is ignored, as in OpenCV.
    Colour profiles and the EXIF orientation are not applied, as in the standard ImageNet protocol.
    """
    try:
        image.load()
        return image.convert("RGB") if drop_alpha and image.mode in ALPHA_MODES else _convert_to_rgb(image)
    except (BrokenImage, MemoryError):
        raise
    except Exception as error:  # the parsers of Pillow raise errors of many types
        raise BrokenImage(_explain_error(error)) from None


def _convert_to_rgb(image: Any) -> Any:
    from PIL import Image

    mode = image.mode
    if mode in ALPHA_MODES or (mode in ("1", "L", "P", "RGB") and "transparency" in image.info):
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, (0, 0, 0, 255)), rgba).convert("RGB")
    if mode == "RGB":
        return image
    if mode in OPAQUE_MODES:
        return image.convert("RGB")
    # Some versions of Pillow open 16-bit PNG and PPM files in mode I.
    if mode in GREY16_MODES or (mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray(((grey * 255 + MAX_UINT16 // 2) // MAX_UINT16).astype(np.uint8)).convert("RGB")
    raise BrokenImage(f"its pixels have Pillow's mode {mode}, whose scale is unknown")


def _explain_error(error: Exception) -> str:
    """Return the message of an error of Pillow in one line."""
    message = " ".join(str(error).split())
    if "cannot identify image file" in message:
        return "it is not an image that Pillow can read"
    return f"it cannot be decoded ({message[:200] or type(error).__name__})"
