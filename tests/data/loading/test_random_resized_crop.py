"""Random resized crops on the device match those of the data-loading workers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.data.image_files.crop_boxes import ASPECT_RATIO_RANGE, CROP_AREA_RANGE, MAX_CROP_TRIES, random_crop_box
from lcrbnn.data.loading.augment import AUGMENTATIONS, draw_augmentation
from lcrbnn.data.loading.random_resized_crop import NUM_RESIZED_CROP_NUMBERS, compute_crop_boxes, random_resized_crop
from lcrbnn.data.loading.worker import _resize
from tests.data.loading.test_image_operations import make_images

IMAGE_SIZE = 64


def draw_numbers(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, NUM_RESIZED_CROP_NUMBERS, generator=torch.Generator().manual_seed(seed))


def convert_to_crop_numbers(random_numbers: Tensor) -> np.ndarray:
    """Return the numbers with which `random_crop_box` draws the same crop, without mirroring."""
    tries = random_numbers.double().numpy().reshape(MAX_CROP_TRIES, 4).copy()
    tries[:, 0] = 1 - tries[:, 0]
    tries[:, 1] = (tries[:, 1] + 0.5) % 1
    return np.append(tries.reshape(-1), 1.0)


def test_crop_boxes_match_those_of_the_workers() -> None:
    random_numbers = draw_numbers(500)
    boxes = torch.stack(tuple(compute_crop_boxes(random_numbers, IMAGE_SIZE)), 1).long()
    expected = [random_crop_box(IMAGE_SIZE, IMAGE_SIZE, convert_to_crop_numbers(row))[0] for row in random_numbers]
    assert boxes.tolist() == [list(box) for box in expected]
    area = boxes[:, 2] * boxes[:, 3] / IMAGE_SIZE**2
    assert CROP_AREA_RANGE[0] * 0.9 < area.min() < 0.12
    assert area.max() > 0.93
    ratio = boxes[:, 2] / boxes[:, 3]
    assert ASPECT_RATIO_RANGE[0] * 0.9 < ratio.min() < 0.8 < 1.25 < ratio.max() < ASPECT_RATIO_RANGE[1] * 1.1


def test_a_crop_is_inside_the_image_for_all_random_numbers() -> None:
    for value in (0.0, 0.5, math.nextafter(1, 0)):
        box = compute_crop_boxes(torch.full((1, NUM_RESIZED_CROP_NUMBERS), value), IMAGE_SIZE)
        assert 0 <= int(box.left) <= IMAGE_SIZE - int(box.width)
        assert 0 <= int(box.top) <= IMAGE_SIZE - int(box.height)
    no_fit = torch.zeros(1, NUM_RESIZED_CROP_NUMBERS).unflatten(1, (MAX_CROP_TRIES, 4))
    no_fit[..., 1] = 0.49  # the largest area and aspect ratio: no try fits
    assert [int(value) for value in compute_crop_boxes(no_fit.flatten(1), IMAGE_SIZE)] == [0, 0, IMAGE_SIZE, IMAGE_SIZE]


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_crops_match_those_of_the_workers_within_one_level(is_mirrored: bool) -> None:
    images, random_numbers = make_images(40, IMAGE_SIZE), draw_numbers(40, 1)
    crops = random_resized_crop(images, random_numbers, torch.full((40,), is_mirrored))
    assert crops.dtype == torch.uint8
    for image, crop, (left, top, width, height) in zip(
        images,
        crops,
        zip(*(side.long().tolist() for side in compute_crop_boxes(random_numbers, IMAGE_SIZE)), strict=True),
        strict=True,
    ):
        region = image[:, top : top + height, left : left + width].permute(1, 2, 0).numpy()
        expected = torch.from_numpy(_resize(region, IMAGE_SIZE, IMAGE_SIZE)).permute(2, 0, 1)
        expected = expected.flip(2) if is_mirrored else expected
        assert (crop.int() - expected.int()).abs().max() <= 1
        exact = F.interpolate(
            image[None, :, top : top + height, left : left + width].float(), (IMAGE_SIZE, IMAGE_SIZE), mode="bilinear"
        )
        exact = exact[0].flip(2) if is_mirrored else exact[0]
        assert (crop - exact).abs().max() <= 0.501  # the workers round twice


def test_each_image_has_its_own_crop_and_identity_draws_change_nothing() -> None:
    images, augmentation = make_images(1, IMAGE_SIZE).repeat(6, 1, 1, 1), AUGMENTATIONS["random-resized-crop-on-device"]
    images[:] = make_images(2, IMAGE_SIZE)[1]
    draws = draw_augmentation(3, 0, 6, augmentation.num_random_numbers)
    crops = augmentation.apply(images, draws)
    assert len({crop.numpy().tobytes() for crop in crops}) == 6
    draws.set_identity()
    assert torch.equal(augmentation.apply(images, draws), images)
