"""Crops of the data-loading workers, compared with Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lcrbnn.data.image_files.crop_boxes import (
    ASPECT_RATIO_RANGE,
    CROP_AREA_RANGE,
    MAX_CROP_TRIES,
    CropBox,
    center_crop_box,
    center_offset,
    compute_resized_size,
    draw_crop_numbers,
    random_crop_box,
)
from lcrbnn.data.image_files.read_arrays import decode_and_center_crop
from lcrbnn.data.loading import worker
from lcrbnn.data.loading.worker import center_crop_image, random_crop_image
from tests.data.image_folders import encode_image, make_smooth_image

IMAGENET_RESIZE_RATIO = 256 / 224


def random_crop_with_pillow(content: bytes, image_size: int, crop_key: int, position: int) -> np.ndarray:
    """Decode the whole image, then crop and resize it with Pillow."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    (left, top, width, height), is_mirrored = random_crop_box(*image.size, draw_crop_numbers(crop_key, position))
    crop = image.crop((left, top, left + width, top + height)).resize(
        (image_size, image_size), Image.Resampling.BILINEAR
    )
    return np.asarray(crop)[:, ::-1] if is_mirrored else np.asarray(crop)


def absolute_difference(image: np.ndarray, other_image: np.ndarray) -> np.ndarray:
    return np.abs(image.astype(int) - other_image.astype(int))


@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(50, 37), (37, 50), (130, 90), (33, 33)])
def test_a_random_crop_matches_pillow_within_one_level(image_format: str, size: tuple[int, int]) -> None:
    content = encode_image(make_smooth_image(*size, seed=3), image_format)
    for position in range(12):
        crop, expected = random_crop_image(content, 64, 7, position), random_crop_with_pillow(content, 64, 7, position)
        assert crop.shape == (64, 64, 3)
        assert absolute_difference(crop, expected).max() <= 1


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (224, 224), (256, 300), (100, 80)])
@pytest.mark.parametrize("image_size", [224, 64])
def test_a_centre_crop_matches_pillow_within_one_level(size: tuple[int, int], image_size: int) -> None:
    content = encode_image(make_smooth_image(*size, seed=4), "PNG")
    crop = center_crop_image(content, image_size, IMAGENET_RESIZE_RATIO)
    assert crop.shape == (image_size, image_size, 3)
    assert absolute_difference(crop, decode_and_center_crop(content, image_size, IMAGENET_RESIZE_RATIO)).max() <= 1


def test_an_image_of_the_crop_size_is_unchanged_at_resize_ratio_1() -> None:
    pixels = make_smooth_image(64, 64, seed=5)
    np.testing.assert_array_equal(center_crop_image(encode_image(pixels, "PNG"), 64, 1.0), pixels)


@pytest.mark.parametrize("size", [(1000, 800), (2100, 1700)])
def test_a_large_jpeg_is_decoded_at_reduced_size_with_a_small_error(size: tuple[int, int]) -> None:
    small = Image.fromarray(make_smooth_image(size[0] // 4, size[1] // 4, seed=6))
    content = encode_image(small.resize(size, Image.Resampling.BICUBIC), quality=95)
    for position in range(6):
        assert (
            absolute_difference(
                random_crop_image(content, 64, 1, position), random_crop_with_pillow(content, 64, 1, position)
            ).mean()
            < 1.2
        )
    assert (
        absolute_difference(
            center_crop_image(content, 224, IMAGENET_RESIZE_RATIO),
            decode_and_center_crop(content, 224, IMAGENET_RESIZE_RATIO),
        ).mean()
        < 1.2
    )


@pytest.mark.parametrize("size", [(3, 3_000_000), (3_000_000, 3)])
def test_an_extremely_long_image_can_be_center_cropped(size: tuple[int, int]) -> None:
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    rows = pixels if size[0] < size[1] else pixels.transpose(1, 0, 2)
    rows[1_499_999:1_500_001] = 200  # two pixels in the centre; the crop shows 224 / 256 * 3 pixels
    content = encode_image(pixels, "PNG")
    crop = center_crop_image(content, 32, IMAGENET_RESIZE_RATIO)
    np.testing.assert_array_equal(crop, decode_and_center_crop(content, 32, IMAGENET_RESIZE_RATIO))
    profile = crop[:, 16, 0] if size[0] < size[1] else crop[16, :, 0]
    assert crop.shape == (32, 32, 3)
    assert profile[16] == 200
    assert abs((profile > 100).sum() - 2 / 3 * 37) <= 1
    across = crop[16] if size[0] < size[1] else crop[:, 16]
    assert (across == 200).all()  # constant across the line


@pytest.mark.parametrize("size", [(170, 10), (10, 170), (1700, 100)])
def test_the_crop_of_a_long_image_matches_that_of_the_resized_image(size: tuple[int, int]) -> None:
    image = Image.fromarray(make_smooth_image(*size, seed=8))
    resized_width, resized_height = compute_resized_size(*size, 32, IMAGENET_RESIZE_RATIO)
    left, top = center_offset(resized_width, resized_height, 32)
    expected = np.asarray(image.resize((resized_width, resized_height), Image.Resampling.BILINEAR))[
        top : top + 32, left : left + 32
    ]
    crop = center_crop_image(encode_image(image, "PNG"), 32, IMAGENET_RESIZE_RATIO)
    inside = slice(4, -4)  # at the border, the crop misses the neighbouring pixels
    assert absolute_difference(crop[inside, inside], expected[inside, inside]).max() <= 2


def test_crop_boxes_match_the_standard_protocol() -> None:
    assert compute_resized_size(500, 375, 224, IMAGENET_RESIZE_RATIO) == (341, 256)
    assert compute_resized_size(375, 500, 224, IMAGENET_RESIZE_RATIO) == (256, 341)
    assert center_offset(341, 256, 224) == (58, 16)
    assert compute_resized_size(64, 64, 64, 1.0) == (64, 64)
    assert compute_resized_size(300, 500, 224, IMAGENET_RESIZE_RATIO) == (
        256,
        426,
    )  # the longer side is truncated, not rounded
    assert compute_resized_size(50, 50, 33, IMAGENET_RESIZE_RATIO) == (38, 38)
    assert center_offset(343, 345, 224) == (60, 60)  # halves are rounded to even
    assert center_crop_box(500, 375, 224, IMAGENET_RESIZE_RATIO) == pytest.approx(
        (58 * 500 / 341, 23.4375, 224 * 500 / 341, 328.125)
    )


@given(width=st.integers(1, 700), height=st.integers(1, 700), position=st.integers(0, 2**40))
def test_a_random_crop_is_inside_its_image(width: int, height: int, position: int) -> None:
    (left, top, w, h), _ = random_crop_box(width, height, draw_crop_numbers(5, position))
    assert 0 <= left <= left + w <= width
    assert 0 <= top <= top + h <= height
    assert w > 0
    assert h > 0


def test_random_crops_cover_the_areas_and_ratios_of_the_protocol() -> None:
    boxes = [random_crop_box(500, 400, draw_crop_numbers(9, position)) for position in range(3000)]
    areas = np.array([b.width * b.height / 200_000 for b, _ in boxes])
    ratios = np.array([b.width / b.height for b, _ in boxes])
    assert CROP_AREA_RANGE[0] * 0.98 < areas.min() < 0.1
    assert 0.95 < areas.max() <= CROP_AREA_RANGE[1]
    assert ASPECT_RATIO_RANGE[0] * 0.98 < ratios.min() < 0.77
    assert 1.3 < ratios.max() < ASPECT_RATIO_RANGE[1] * 1.02
    assert abs(np.mean([is_mirrored for _, is_mirrored in boxes]) - 0.5) < 0.05
    lefts = np.array([b.left / (500 - b.width) for b, _ in boxes if b.width < 400])
    assert abs(lefts.mean() - 0.5) < 0.05
    assert lefts.min() < 0.02
    assert lefts.max() > 0.98


@pytest.mark.parametrize(
    ("size", "numbers", "box"),
    [
        ((400, 300), (0.5, 0.5, 0.999, 0.0), CropBox(145, 0, 255, 255)),  # 54 % of the area, square
        ((400, 300), (0.0, 0.0, 0.0, 0.999), CropBox(0, 187, 85, 113)),  # 8 %, ratio 3:4
        ((200, 260), (0.74916, 0.5, 0.999, 0.5), CropBox(0, 30, 200, 200)),  # as wide as the image
        ((1, 1), (0.0, 0.5, 0.0, 0.0), CropBox(0, 0, 1, 1)),  # never empty
    ],
)
def test_random_numbers_set_area_ratio_position_and_flip(
    size: tuple[int, int], numbers: tuple[float, float, float, float], box: CropBox
) -> None:
    """The numbers are area, logarithm of the ratio, and position. The last number decides on mirroring."""
    for flip_number, is_mirrored in ((0.499, True), (0.5, False)):
        assert random_crop_box(*size, np.array([*numbers * MAX_CROP_TRIES, flip_number])) == (box, is_mirrored)


def test_a_jpeg_is_never_decoded_smaller_than_the_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode_image(make_smooth_image(1500, 1100, seed=2))
    reductions: list[int] = []
    set_draft_size = worker.set_draft_size

    def record_reduction(image: Image.Image, max_reduction: int) -> int:
        reductions.append(set_draft_size(image, max_reduction))
        return reductions[-1]

    monkeypatch.setattr(worker, "set_draft_size", record_reduction)
    center_crop_image(content, 200, IMAGENET_RESIZE_RATIO)
    assert reductions == [4]  # 229 of 1100 pixels
    for position in range(12):
        box, _ = random_crop_box(1500, 1100, draw_crop_numbers(1, position))
        random_crop_image(content, 100, 1, position)
        assert reductions[-1] * 100 <= max(min(box.width, box.height), 100)
    assert max(reductions) > 1


@pytest.mark.parametrize(("size", "crop_size"), [((1000, 10), (13, 10)), ((10, 1000), (10, 13))])
def test_the_centre_is_used_if_no_random_crop_fits(size: tuple[int, int], crop_size: tuple[int, int]) -> None:
    crop_numbers = np.full(4 * MAX_CROP_TRIES + 1, 0.999)
    box, _ = random_crop_box(*size, crop_numbers)
    assert (box.width, box.height) == crop_size
    assert (box.left, box.top) == ((size[0] - crop_size[0]) // 2, (size[1] - crop_size[1]) // 2)


def test_crop_numbers_depend_only_on_key_and_position() -> None:
    np.testing.assert_array_equal(draw_crop_numbers(3, 4), draw_crop_numbers(3, 4))
    assert len({draw_crop_numbers(key, position)[0] for key in (0, 3, 2**63 - 1) for position in range(50)}) == 150
