"""Every odd kind of image: what becomes of it, against the values that it was made of."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data.decode import MOST_PIXELS, open_picture, pixels, reduced
from lcrbnn.data.listing import Broken
from tests.data.trees import encoded, smooth

RGB = smooth(40, 30, seed=1)
GREY = RGB[:, :, 0]


def shown(content: bytes) -> np.ndarray:
    return np.asarray(pixels(open_picture(content)))


def deep(kind: str) -> bytes:
    """Grey of 16 bits: 257 times the values of 8."""
    return encoded(Image.fromarray(GREY.astype(np.uint16) * 257), kind)


def clear(alpha: int) -> bytes:
    return encoded(np.dstack([RGB, np.full(GREY.shape, alpha, np.uint8)]), "PNG")


def palette() -> tuple[bytes, np.ndarray]:
    picture = Image.fromarray(RGB).quantize(16)
    return encoded(picture, "PNG"), np.asarray(picture.convert("RGB"))


def transparent_palette() -> tuple[bytes, np.ndarray]:
    picture = Image.fromarray(RGB).quantize(16)
    wanted = np.asarray(picture.convert("RGB")).copy()
    wanted[np.asarray(picture) == 0] = 0
    return encoded(picture, "PNG", transparency=0), wanted


def cmyk() -> tuple[bytes, np.ndarray]:
    picture = Image.fromarray(RGB).convert("CMYK")
    content = encoded(picture, "TIFF")
    return content, 255 - np.asarray(picture)[:, :, :3]  # no black in it, so RGB is what the inks leave


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def deep_rgb(*more: tuple[bytes, bytes]) -> bytes:
    """A PNG of 3 x 16 bits, which Pillow does not write."""
    rows = b"".join(b"\0" + (RGB[y].astype(">u2") * 257).tobytes() for y in range(30))
    head = struct.pack(">IIBBBBB", 40, 30, 16, 2, 0, 0, 0)
    return png((b"IHDR", head), *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))


ODD: dict[str, tuple[bytes, np.ndarray]] = {
    "grey": (encoded(GREY, "PNG"), np.dstack([GREY] * 3)),
    "black and white": (encoded(Image.fromarray(GREY > 128), "PNG"), np.dstack([(GREY > 128) * np.uint8(255)] * 3)),
    "16-bit grey PNG": (deep("PNG"), np.dstack([GREY] * 3)),
    "16-bit grey TIFF": (deep("TIFF"), np.dstack([GREY] * 3)),
    "16-bit RGB": (deep_rgb(), RGB),
    "opaque alpha": (clear(255), RGB),
    "transparent alpha": (clear(0), np.zeros_like(RGB)),
    "palette": palette(),
    "palette with a transparent colour": transparent_palette(),
    "CMYK": cmyk(),
    "GIF": (encoded(Image.fromarray(GREY), "GIF"), np.dstack([GREY] * 3)),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_kind_of_image_is_shown_as_it_was_meant(kind: str) -> None:
    content, wanted = ODD[kind]
    np.testing.assert_array_equal(shown(content), wanted)


def test_what_comes_after_the_pixels_may_have_a_wrong_checksum() -> None:
    late = png((b"tEXt", b"Comment\0late"))[8:]
    content = PNG[:-12] + turned(late, 10) + PNG[-12:]
    np.testing.assert_array_equal(shown(content), RGB)


def test_two_pictures_of_a_camera_in_one_file_are_the_first() -> None:
    two = encoded(Image.fromarray(RGB), "MPO", save_all=True, append_images=[Image.fromarray(255 - RGB)])
    assert np.abs(shown(two).astype(int) - RGB).mean() < 4


def test_half_of_alpha_is_half_as_bright_on_black() -> None:
    np.testing.assert_allclose(shown(clear(128)), RGB * (128 / 255), atol=1)


def test_a_cmyk_jpeg_has_its_colours_the_right_way_round() -> None:
    found = shown(encoded(Image.fromarray(RGB).convert("CMYK"), quality=95))
    assert np.abs(found.astype(int) - RGB).mean() < 4


def giant(width: int, height: int) -> bytes:
    """The beginning of a PNG of this size; nothing of it is ever decoded."""
    return png((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", bytes(100)))


def turned(content: bytes, at: int) -> bytes:
    """With one wrong bit."""
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


JPEG = encoded(RGB, quality=90)
PNG = encoded(RGB, "PNG")


def tagged(content: bytes, tag: int, value: int) -> bytes:
    """A little-endian TIFF file with another value, of 16 bits, for one of its tags."""
    at = content.index(struct.pack("<HHI", tag, 3, 1))
    return content[: at + 8] + struct.pack("<I", value) + content[at + 12 :]


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty"),
    "HTML": (lambda: b"<html>not found</html>", "no image that Pillow knows"),
    "zeros": (lambda: bytes(1000), "no image that Pillow knows"),
    "a JPEG cut short": (lambda: JPEG[: len(JPEG) // 2], "cannot be decoded"),
    "a JPEG of a header alone": (lambda: JPEG[:200], "Pillow knows|cannot be decoded"),
    "a PNG with zeros at its end": (lambda: PNG[:-200] + bytes(200), "cannot be decoded"),
    "a PNG with a wrong bit": (lambda: turned(PNG, len(PNG) // 2), "not have the checksums that it promises"),
    "a PNG with a wrong size": (lambda: turned(PNG, 23), "Pillow knows|cannot be decoded"),
    "a PNG without its end": (lambda: PNG[:-12], "it ends before its last chunk"),
    "a transparent colour of 16 bits": (
        lambda: deep_rgb((b"tRNS", struct.pack(">HHH", 1, 1, 1))),
        "a transparent colour of 16 bits a channel",
    ),
    "a picture that a program would have to draw": (
        lambda: encoded(RGB, "EPS"),
        "no image that Pillow knows",
    ),
    "a giant": (lambda: giant(10_001, 10_000), "10001 x 10000 pixels; the most is 100,000,000"),
    "a bomb": (lambda: giant(60_000, 60_000), "more than 100,000,000 pixels"),
    "real numbers": (
        lambda: encoded(Image.fromarray(GREY.astype(np.float32)), "TIFF"),
        "mode F, which has no known scale",
    ),
    "12-bit grey TIFF": (
        lambda: tagged(deep("TIFF"), 258, 12),
        "TIFF file with 12 bits a pixel, which Pillow takes for 16",
    ),
    "16-bit grey TIFF, 0 for white": (lambda: tagged(deep("TIFF"), 262, 0), "16 bits a pixel, 0 for white"),
    "32-bit numbers": (lambda: encoded(Image.fromarray(GREY.astype(np.int32)), "TIFF"), "mode I, which has no known"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_that_cannot_be_right_is_broken(kind: str) -> None:
    make, said = BROKEN[kind]
    with pytest.raises(Broken, match=said) as caught:
        pixels(open_picture(make()))
    assert "\n" not in str(caught.value)


def test_the_limit_of_pixels_is_below_pillows_own() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert MOST_PIXELS < 2 * Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(("times", "by"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (20, 8)])
def test_a_large_jpeg_is_decoded_small_but_never_smaller_than_asked(times: int, by: int) -> None:
    picture = Image.open(io.BytesIO(encoded(smooth(333, 250, 2))))
    assert reduced(picture, times) == by
    assert pixels(picture).size == (-(-333 // by), -(-250 // by))


def test_only_a_jpeg_can_be_decoded_small() -> None:
    picture = Image.open(io.BytesIO(encoded(RGB, "PNG")))
    assert reduced(picture, 8) == 1
    assert pixels(picture).size == (40, 30)


def test_sixteen_bits_of_a_pgm_are_rounded() -> None:
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8)
    content = b"P5 8 8 65535\n" + (grey * 4 * 257).astype(">u2").tobytes()
    assert np.array_equal(np.asarray(pixels(open_picture(content)))[..., 0], grey * 4)
