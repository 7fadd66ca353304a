"""Random parts of images on the device: those of the standard protocol, resized as the reading processes do it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.data.geometry import AREA, RATIO, TRIES, random_crop
from lcrbnn.train.augment import AUGMENT, draw
from lcrbnn.train.crops import _resize
from lcrbnn.train.zoom import ZOOM_NUMBERS, boxes, zoom
from tests.train.test_mixing import pictures

SIDE = 64


def drawn(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, ZOOM_NUMBERS, generator=torch.Generator().manual_seed(seed))


def as_read(numbers: Tensor) -> np.ndarray:
    """The same choices in the numbers of `random_crop`, which count areas from the smallest on; not mirrored."""
    tries = numbers.double().numpy().reshape(TRIES, 4).copy()
    tries[:, 0] = 1 - tries[:, 0]
    tries[:, 1] = (tries[:, 1] + 0.5) % 1
    return np.append(tries.reshape(-1), 1.0)


def test_parts_are_those_of_the_standard_protocol() -> None:
    numbers = drawn(500)
    found = torch.stack(tuple(boxes(numbers, SIDE)), 1).long()
    wanted = [random_crop(SIDE, SIDE, as_read(one))[0] for one in numbers]
    assert found.tolist() == [list(one) for one in wanted]
    area = found[:, 2] * found[:, 3] / SIDE**2
    assert AREA[0] * 0.9 < area.min() < 0.12
    assert area.max() > 0.93
    ratio = found[:, 2] / found[:, 3]
    assert RATIO[0] * 0.9 < ratio.min() < 0.8 < 1.25 < ratio.max() < RATIO[1] * 1.1


def test_a_part_lies_in_the_image_whatever_was_drawn() -> None:
    for value in (0.0, 0.5, math.nextafter(1, 0)):
        box = boxes(torch.full((1, ZOOM_NUMBERS), value), SIDE)
        assert 0 <= int(box.left) <= SIDE - int(box.width)
        assert 0 <= int(box.top) <= SIDE - int(box.height)
    wide = torch.zeros(1, ZOOM_NUMBERS).unflatten(1, (TRIES, 4))
    wide[..., 1] = 0.49  # as wide as can be, and as large: no try fits
    assert [int(one) for one in boxes(wide.flatten(1), SIDE)] == [0, 0, SIDE, SIDE]


@pytest.mark.parametrize("mirrored", [False, True])
def test_they_are_resized_as_images_from_files_are_to_one_level(mirrored: bool) -> None:
    images, numbers = pictures(40, SIDE), drawn(40, 1)
    made = zoom(images, numbers, torch.full((40,), mirrored))
    assert made.dtype == torch.uint8
    for image, one, (left, top, width, height) in zip(
        images, made, zip(*(side.long().tolist() for side in boxes(numbers, SIDE)), strict=True), strict=True
    ):
        part = image[:, top : top + height, left : left + width].permute(1, 2, 0).numpy()
        wanted = torch.from_numpy(_resize(part, SIDE, SIDE)).permute(2, 0, 1)
        wanted = wanted.flip(2) if mirrored else wanted
        assert (one.int() - wanted.int()).abs().max() <= 1
        exact = F.interpolate(
            image[None, :, top : top + height, left : left + width].float(), (SIDE, SIDE), mode="bilinear"
        )
        exact = exact[0].flip(2) if mirrored else exact[0]
        assert (one - exact).abs().max() <= 0.501  # the reading processes round twice


def test_each_image_has_its_own_part_and_still_draws_change_nothing() -> None:
    images, how = pictures(1, SIDE).repeat(6, 1, 1, 1), AUGMENT["zoom-flip"]
    images[:] = pictures(2, SIDE)[1]
    draws = draw(3, 0, 6, how.numbers)
    made = how.apply(images, draws)
    assert len({one.numpy().tobytes() for one in made}) == 6
    draws.still()
    assert torch.equal(how.apply(images, draws), images)
