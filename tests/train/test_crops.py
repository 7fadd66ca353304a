"""The squares that a reading process makes, against plain Pillow with the crop written out."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lcrbnn.data.geometry import AREA, RATIO, TRIES, Box, centre, draws, middle, random_crop, resized
from lcrbnn.data.pixels import pillow_square
from lcrbnn.train import crops
from lcrbnn.train.crops import evaluation_square, random_square
from tests.data.trees import encoded, smooth

STANDARD = 256 / 224


def pillow_random(content: bytes, side: int, key: int, place: int) -> np.ndarray:
    """The slow twin: the whole image decoded, cropped and resized by Pillow."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    (left, top, width, height), mirrored = random_crop(*picture.size, draws(key, place))
    part = picture.crop((left, top, left + width, top + height)).resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(part)[:, ::-1] if mirrored else np.asarray(part)


def apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(50, 37), (37, 50), (130, 90), (33, 33)])
def test_a_random_square_is_pillows_to_one_level(kind: str, size: tuple[int, int]) -> None:
    content = encoded(smooth(*size, seed=3), kind)
    for place in range(12):
        made, wanted = random_square(content, 64, 7, place), pillow_random(content, 64, 7, place)
        assert made.shape == (64, 64, 3)
        assert apart(made, wanted).max() <= 1


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (224, 224), (256, 300), (100, 80)])
@pytest.mark.parametrize("side", [224, 64])
def test_an_evaluation_square_is_pillows(size: tuple[int, int], side: int) -> None:
    content = encoded(smooth(*size, seed=4), "PNG")
    made = evaluation_square(content, side, STANDARD)
    assert made.shape == (side, side, 3)
    assert apart(made, pillow_square(content, side, STANDARD)).max() <= 1


def test_an_image_of_the_right_size_is_taken_as_it_is_where_there_is_no_margin() -> None:
    pixels = smooth(64, 64, seed=5)
    np.testing.assert_array_equal(evaluation_square(encoded(pixels, "PNG"), 64, 1.0), pixels)


@pytest.mark.parametrize("size", [(1000, 800), (2100, 1700)])
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(size: tuple[int, int]) -> None:
    small = Image.fromarray(smooth(size[0] // 4, size[1] // 4, seed=6))
    content = encoded(small.resize(size, Image.Resampling.BICUBIC), quality=95)
    for place in range(6):
        assert apart(random_square(content, 64, 1, place), pillow_random(content, 64, 1, place)).mean() < 1.2
    assert apart(evaluation_square(content, 224, STANDARD), pillow_square(content, 224, STANDARD)).mean() < 1.2


@pytest.mark.parametrize("size", [(3, 3_000_000), (3_000_000, 3)])
def test_the_middle_of_an_image_is_had_however_long_it_is(size: tuple[int, int]) -> None:
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    at = pixels if size[0] < size[1] else pixels.transpose(1, 0, 2)
    at[1_499_999:1_500_001] = 200  # two pixels in the middle, of which 224 / 256 * 3 are seen
    content = encoded(pixels, "PNG")
    made = evaluation_square(content, 32, STANDARD)
    np.testing.assert_array_equal(made, pillow_square(content, 32, STANDARD))
    seen = made[:, 16, 0] if size[0] < size[1] else made[16, :, 0]
    assert made.shape == (32, 32, 3)
    assert seen[16] == 200
    assert abs((seen > 100).sum() - 2 / 3 * 37) <= 1
    across = made[16] if size[0] < size[1] else made[:, 16]
    assert (across == 200).all()  # nothing from beside it


@pytest.mark.parametrize("size", [(170, 10), (10, 170), (1700, 100)])
def test_the_middle_of_a_long_image_is_that_of_the_whole_one_resized(size: tuple[int, int]) -> None:
    picture = Image.fromarray(smooth(*size, seed=8))
    wide, high = resized(*size, 32, STANDARD)
    left, top = centre(wide, high, 32)
    whole = np.asarray(picture.resize((wide, high), Image.Resampling.BILINEAR))[top : top + 32, left : left + 32]
    made = evaluation_square(encoded(picture, "PNG"), 32, STANDARD)
    inside = slice(4, -4)  # at its border a part does not see what lies beside it
    assert apart(made[inside, inside], whole[inside, inside]).max() <= 2


def test_the_standard_protocol_has_the_usual_numbers() -> None:
    assert resized(500, 375, 224, STANDARD) == (341, 256)
    assert resized(375, 500, 224, STANDARD) == (256, 341)
    assert centre(341, 256, 224) == (58, 16)
    assert resized(64, 64, 64, 1.0) == (64, 64)
    assert resized(300, 500, 224, STANDARD) == (256, 426)  # the longer side is cut off, not rounded
    assert resized(50, 50, 33, STANDARD) == (38, 38)
    assert centre(343, 345, 224) == (60, 60)  # a half goes to the even number
    assert middle(500, 375, 224, STANDARD) == pytest.approx((58 * 500 / 341, 23.4375, 224 * 500 / 341, 328.125))


@given(width=st.integers(1, 700), height=st.integers(1, 700), place=st.integers(0, 2**40))
def test_a_random_crop_lies_inside_its_image(width: int, height: int, place: int) -> None:
    (left, top, w, h), _ = random_crop(width, height, draws(5, place))
    assert 0 <= left <= left + w <= width
    assert 0 <= top <= top + h <= height
    assert w > 0
    assert h > 0


def test_random_crops_cover_the_areas_and_ratios_of_the_protocol() -> None:
    boxes = [random_crop(500, 400, draws(9, place)) for place in range(3000)]
    areas = np.array([b.width * b.height / 200_000 for b, _ in boxes])
    ratios = np.array([b.width / b.height for b, _ in boxes])
    assert AREA[0] * 0.98 < areas.min() < 0.1
    assert 0.95 < areas.max() <= AREA[1]
    assert RATIO[0] * 0.98 < ratios.min() < 0.77
    assert 1.3 < ratios.max() < RATIO[1] * 1.02
    assert abs(np.mean([mirrored for _, mirrored in boxes]) - 0.5) < 0.05
    lefts = np.array([b.left / (500 - b.width) for b, _ in boxes if b.width < 400])
    assert abs(lefts.mean() - 0.5) < 0.05
    assert lefts.min() < 0.02
    assert lefts.max() > 0.98


@pytest.mark.parametrize(
    ("size", "numbers", "box"),
    [
        ((400, 300), (0.5, 0.5, 0.999, 0.0), Box(145, 0, 255, 255)),  # 54 % of it, as wide as high
        ((400, 300), (0.0, 0.0, 0.0, 0.999), Box(0, 187, 85, 113)),  # 8 %, three wide and four high
        ((200, 260), (0.74916, 0.5, 0.999, 0.5), Box(0, 30, 200, 200)),  # as wide as the image
        ((1, 1), (0.0, 0.5, 0.0, 0.0), Box(0, 0, 1, 1)),  # never nothing
    ],
)
def test_a_crop_is_what_its_numbers_say(
    size: tuple[int, int], numbers: tuple[float, float, float, float], box: Box
) -> None:
    """Area, ratio (even in its logarithm) and place, each from a number of its own; then whether it is mirrored."""
    for last, mirrored in ((0.499, True), (0.5, False)):
        assert random_crop(*size, np.array([*numbers * TRIES, last])) == (box, mirrored)


def test_a_jpeg_is_never_decoded_smaller_than_the_square_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(smooth(1500, 1100, seed=2))
    asked: list[int] = []
    whole = crops.reduced

    def noted(picture: Image.Image, times: int) -> int:
        asked.append(whole(picture, times))
        return asked[-1]

    monkeypatch.setattr(crops, "reduced", noted)
    evaluation_square(content, 200, STANDARD)
    assert asked == [4]  # 229 of 1100 pixels
    for place in range(12):
        box, _ = random_crop(1500, 1100, draws(1, place))
        random_square(content, 100, 1, place)
        assert asked[-1] * 100 <= max(min(box.width, box.height), 100)
    assert max(asked) > 1


@pytest.mark.parametrize(("size", "middle"), [((1000, 10), (13, 10)), ((10, 1000), (10, 13))])
def test_where_no_crop_fits_the_middle_is_taken(size: tuple[int, int], middle: tuple[int, int]) -> None:
    drawn = np.full(4 * TRIES + 1, 0.999)
    box, _ = random_crop(*size, drawn)
    assert (box.width, box.height) == middle
    assert (box.left, box.top) == ((size[0] - middle[0]) // 2, (size[1] - middle[1]) // 2)


def test_draws_depend_on_key_and_place_alone() -> None:
    np.testing.assert_array_equal(draws(3, 4), draws(3, 4))
    assert len({draws(key, place)[0] for key in (0, 3, 2**63 - 1) for place in range(50)}) == 150
