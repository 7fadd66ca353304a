"""Decoding of images in many formats and modes, and of damaged images."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data.image_files.decode import MAX_PIXELS, decode_rgb, open_image, set_draft_size
from lcrbnn.data.image_files.image_index import BrokenImage
from tests.data.image_folders import encode_image, make_smooth_image

RGB = make_smooth_image(40, 30, seed=1)
GREY = RGB[:, :, 0]


def decode(content: bytes) -> np.ndarray:
    return np.asarray(decode_rgb(open_image(content)))


def encode_16_bit_grey(image_format: str) -> bytes:
    """Return an image of 16-bit grey values, which are 257 times the 8-bit values."""
    return encode_image(Image.fromarray(GREY.astype(np.uint16) * 257), image_format)


def encode_with_alpha(alpha: int) -> bytes:
    return encode_image(np.dstack([RGB, np.full(GREY.shape, alpha, np.uint8)]), "PNG")


def make_palette_image() -> tuple[bytes, np.ndarray]:
    image = Image.fromarray(RGB).quantize(16)
    return encode_image(image, "PNG"), np.asarray(image.convert("RGB"))


def make_transparent_palette_image() -> tuple[bytes, np.ndarray]:
    image = Image.fromarray(RGB).quantize(16)
    expected = np.asarray(image.convert("RGB")).copy()
    expected[np.asarray(image) == 0] = 0
    return encode_image(image, "PNG", transparency=0), expected


def make_cmyk_image() -> tuple[bytes, np.ndarray]:
    image = Image.fromarray(RGB).convert("CMYK")
    content = encode_image(image, "TIFF")
    return content, 255 - np.asarray(image)[:, :, :3]  # there is no black ink


def make_png(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def encode_16_bit_rgb(*extra_chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of 3 x 16 bits, which Pillow cannot write."""
    rows = b"".join(b"\0" + (RGB[y].astype(">u2") * 257).tobytes() for y in range(30))
    header = struct.pack(">IIBBBBB", 40, 30, 16, 2, 0, 0, 0)
    return make_png((b"IHDR", header), *extra_chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))


SUPPORTED_IMAGES: dict[str, tuple[bytes, np.ndarray]] = {
    "grey": (encode_image(GREY, "PNG"), np.dstack([GREY] * 3)),
    "black and white": (
        encode_image(Image.fromarray(GREY > 128), "PNG"),
        np.dstack([(GREY > 128) * np.uint8(255)] * 3),
    ),
    "16-bit grey PNG": (encode_16_bit_grey("PNG"), np.dstack([GREY] * 3)),
    "16-bit grey TIFF": (encode_16_bit_grey("TIFF"), np.dstack([GREY] * 3)),
    "16-bit RGB": (encode_16_bit_rgb(), RGB),
    "opaque alpha": (encode_with_alpha(255), RGB),
    "transparent alpha": (encode_with_alpha(0), np.zeros_like(RGB)),
    "palette": make_palette_image(),
    "palette with a transparent colour": make_transparent_palette_image(),
    "CMYK": make_cmyk_image(),
    "GIF": (encode_image(Image.fromarray(GREY), "GIF"), np.dstack([GREY] * 3)),
}


@pytest.mark.parametrize("kind", SUPPORTED_IMAGES)
def test_supported_images_are_decoded_correctly(kind: str) -> None:
    content, expected = SUPPORTED_IMAGES[kind]
    np.testing.assert_array_equal(decode(content), expected)


def test_a_wrong_checksum_after_the_pixels_is_ignored() -> None:
    text_chunk = make_png((b"tEXt", b"Comment\0late"))[8:]
    content = PNG[:-12] + flip_bit(text_chunk, 10) + PNG[-12:]
    np.testing.assert_array_equal(decode(content), RGB)


def test_the_first_image_of_an_mpo_file_is_decoded() -> None:
    content = encode_image(Image.fromarray(RGB), "MPO", save_all=True, append_images=[Image.fromarray(255 - RGB)])
    assert np.abs(decode(content).astype(int) - RGB).mean() < 4


def test_alpha_is_blended_with_black() -> None:
    np.testing.assert_allclose(decode(encode_with_alpha(128)), RGB * (128 / 255), atol=1)


def test_a_cmyk_jpeg_is_not_inverted() -> None:
    decoded = decode(encode_image(Image.fromarray(RGB).convert("CMYK"), quality=95))
    assert np.abs(decoded.astype(int) - RGB).mean() < 4


def make_png_start(width: int, height: int) -> bytes:
    """Return the start of a PNG of this size. It cannot be decoded."""
    return make_png((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", bytes(100)))


def flip_bit(content: bytes, offset: int) -> bytes:
    """Return the content with one wrong bit."""
    return content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]


JPEG = encode_image(RGB, quality=90)
PNG = encode_image(RGB, "PNG")


def set_tiff_tag(content: bytes, tag: int, value: int) -> bytes:
    """Return a little-endian TIFF file with another 16-bit value for a tag."""
    offset = content.index(struct.pack("<HHI", tag, 3, 1))
    return content[: offset + 8] + struct.pack("<I", value) + content[offset + 12 :]


BROKEN_IMAGES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty"),
    "HTML": (lambda: b"<html>not found</html>", "not an image that Pillow can read"),
    "zeros": (lambda: bytes(1000), "not an image that Pillow can read"),
    "a JPEG cut short": (lambda: JPEG[: len(JPEG) // 2], "cannot be decoded"),
    "a JPEG with only a header": (lambda: JPEG[:200], "Pillow can read|cannot be decoded"),
    "a PNG with zeros at its end": (lambda: PNG[:-200] + bytes(200), "cannot be decoded"),
    "a PNG with a wrong bit": (lambda: flip_bit(PNG, len(PNG) // 2), "do not match its checksums"),
    "a PNG with a wrong size": (lambda: flip_bit(PNG, 23), "Pillow can read|cannot be decoded"),
    "a PNG without its end": (lambda: PNG[:-12], "it ends before its last chunk"),
    "a transparent colour of 16 bits": (
        lambda: encode_16_bit_rgb((b"tRNS", struct.pack(">HHH", 1, 1, 1))),
        "a transparent colour of 16 bits per channel",
    ),
    "EPS": (lambda: encode_image(RGB, "EPS"), "not an image that Pillow can read"),
    "more pixels than allowed": (lambda: make_png_start(10_001, 10_000), "10001 x 10000 pixels; at most 100,000,000"),
    "a decompression bomb": (lambda: make_png_start(60_000, 60_000), "more than 100,000,000 pixels"),
    "real numbers": (
        lambda: encode_image(Image.fromarray(GREY.astype(np.float32)), "TIFF"),
        "mode F, whose scale is unknown",
    ),
    "12-bit grey TIFF": (
        lambda: set_tiff_tag(encode_16_bit_grey("TIFF"), 258, 12),
        "TIFF file with 12 bits per pixel, which Pillow reads as 16",
    ),
    "16-bit grey TIFF, 0 for white": (
        lambda: set_tiff_tag(encode_16_bit_grey("TIFF"), 262, 0),
        "16 bits per pixel and white = 0",
    ),
    "32-bit numbers": (
        lambda: encode_image(Image.fromarray(GREY.astype(np.int32)), "TIFF"),
        "mode I, whose scale is unknown",
    ),
}


@pytest.mark.parametrize("kind", BROKEN_IMAGES)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_invalid_image_is_broken(kind: str) -> None:
    make_content, message = BROKEN_IMAGES[kind]
    with pytest.raises(BrokenImage, match=message) as error_info:
        decode_rgb(open_image(make_content()))
    assert "\n" not in str(error_info.value)


def test_the_pixel_limit_is_below_that_of_pillow() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert MAX_PIXELS < 2 * Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(("max_reduction", "reduction"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (20, 8)])
def test_a_jpeg_is_reduced_at_most_by_the_given_factor(max_reduction: int, reduction: int) -> None:
    image = Image.open(io.BytesIO(encode_image(make_smooth_image(333, 250, 2))))
    assert set_draft_size(image, max_reduction) == reduction
    assert decode_rgb(image).size == (-(-333 // reduction), -(-250 // reduction))


def test_a_png_is_not_reduced() -> None:
    image = Image.open(io.BytesIO(encode_image(RGB, "PNG")))
    assert set_draft_size(image, 8) == 1
    assert decode_rgb(image).size == (40, 30)


def test_a_16_bit_pgm_is_rounded_to_8_bits() -> None:
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8)
    content = b"P5 8 8 65535\n" + (grey * 4 * 257).astype(">u2").tobytes()
    assert np.array_equal(np.asarray(decode_rgb(open_image(content)))[..., 0], grey * 4)
