from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.evaluation.corruptions import corruption_registry as table
from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS, apply_corruption
from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.frost_photos import PHOTO_SCALES, FrostPhotos, resize_photo
from lcrbnn.evaluation.corruptions.severities import IMAGE_SIDES, SEVERITY_PARAMETERS
from lcrbnn.evaluation.corruptions.weather import draw_crop, frost
from tests.evaluation.corruptions.helpers import load_enlarged_digits, write_frost_photos

RANDOM_CORRUPTIONS = [name for name, row in CORRUPTIONS.items() if row.draw is not table._draw_nothing]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> FrostPhotos:
    return FrostPhotos(write_frost_photos(tmp_path_factory.mktemp("photos")))


def make_images(count: int = 5, side: int = 32) -> Tensor:
    """Return smooth noise images, which every corruption changes."""
    rng = torch.Generator().manual_seed(1)
    noise = torch.rand(count, 3, 8, 8, generator=rng) * 255
    return torch.nn.functional.interpolate(noise, size=side, mode="bilinear").to(torch.uint8)


def test_there_are_15_main_and_4_extra_corruptions_in_four_families() -> None:
    assert len(CORRUPTIONS) == 19
    assert [row.name for row in CORRUPTIONS.values() if not row.is_main] == [
        "speckle_noise",
        "gaussian_blur",
        "spatter",
        "saturate",
    ]
    assert {row.family for row in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}
    assert list(SEVERITY_PARAMETERS) == sorted(SEVERITY_PARAMETERS, key=list(CORRUPTIONS).index)
    assert all(
        set(rows) == set(IMAGE_SIDES) and all(len(severities) == 5 for severities in rows.values())
        for rows in SEVERITY_PARAMETERS.values()
    )


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_corruption_of_an_image_does_not_depend_on_the_batch(
    name: str, photos: FrostPhotos, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, indices = make_images(), torch.tensor([0, 3, 17, 900, 41])
    corrupted = apply_corruption(images, name, 5, indices, photos)
    assert corrupted.dtype == torch.uint8
    assert corrupted.shape == images.shape
    assert not torch.equal(corrupted, images)
    monkeypatch.setattr(table, "MIN_BATCH_IMAGES", 2)
    monkeypatch.setattr(table, "PIXELS_PER_CPU_BATCH", 1)
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.equal(apply_corruption(images[order], name, 5, indices[order], photos), corrupted[order])
    assert torch.equal(apply_corruption(images[1:2], name, 5, indices[1:2], photos), corrupted[1:2])


@pytest.mark.parametrize("name", RANDOM_CORRUPTIONS)
def test_random_numbers_differ_between_images_severities_and_splits(name: str, photos: FrostPhotos) -> None:
    images, indices = make_images(1).repeat(2, 1, 1, 1), torch.tensor([0, 1])
    test, train = (apply_corruption(images, name, 4, indices, photos, split=split) for split in ("test", "train"))
    assert not torch.equal(test[0], test[1])
    assert not torch.equal(test, train)
    corruption = CORRUPTIONS[name]
    parameters = corruption.get_parameters(32, 4)
    draws = [
        corruption.draw(ImageRandom(f"0/test/{name}/{severity}", indices, photos), images, parameters)
        for severity in (4, 5)
    ]
    first, second = (d[0][0] if isinstance(d[0], list) else d[0] for d in draws)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("side", [64, 224])
def test_every_corruption_works_for_larger_images(side: int, photos: FrostPhotos) -> None:
    images = make_images(1, side)
    for name in CORRUPTIONS:
        corrupted = apply_corruption(images, name, 3, torch.tensor([5]), photos)
        assert corrupted.shape == images.shape, name
        assert not torch.equal(corrupted, images), name


def test_glass_blur_equals_a_sequential_loop_over_pixels() -> None:
    """The reference is a loop over pixels, with shifts in both directions."""
    side, parameters = 12, (0.01, 3, 2)
    images = make_images(2, side)
    shifts = CORRUPTIONS["glass_blur"].draw(ImageRandom("g", torch.arange(2)), images, parameters)[0]
    corrupted = CORRUPTIONS["glass_blur"].apply(images, parameters, shifts)
    for expected, image_shifts, result in zip(images.clone(), shifts, corrupted, strict=True):
        for step in image_shifts:
            for h in range(side - 3, 3, -1):
                for w in range(side - 3, 3, -1):
                    expected[:, h, w] = expected[:, h + step[1, h, w], w + step[0, h, w]]
        assert torch.equal(result, expected)


def test_frost_adds_a_weighted_crop_of_a_photo(photos: FrostPhotos) -> None:
    images = make_images(40)
    (crop,) = draw_crop(ImageRandom("f", torch.arange(40), photos), images, (0.75, 0.45))
    resized_photos = [resize_photo(photo, 0.2).transpose(2, 0, 1) for photo in photos._photos]
    windows = [np.lib.stride_tricks.sliding_window_view(s, (3, 32, 32)).reshape(-1, 3, 32, 32) for s in resized_photos]
    photo_indices = [next(i for i, w in enumerate(windows) if (w == c.numpy()).all((1, 2, 3)).any()) for c in crop]
    assert set(photo_indices) == set(range(5))
    expected = np.clip(0.75 * images.numpy() + 0.45 * crop.numpy(), 0, 255).astype(np.uint8)
    assert np.array_equal(frost(images, (0.75, 0.45), crop).numpy(), expected)


def test_frost_has_the_published_weights_and_photo_scales() -> None:
    """The published values are weights of image and frost per severity, and the scale of the photos."""
    assert SEVERITY_PARAMETERS["frost"] == {
        32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        64: ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    }
    assert PHOTO_SCALES == {32: 0.2, 64: 0.3, 224: 1.0}


def test_a_photo_is_resized_by_bilinear_interpolation() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    assert np.array_equal(resize_photo(photo, 0.2), photo[2::5, 2::5])  # the middle pixel of five
    assert resize_photo(photo, 1.0) is photo
    small = resize_photo(photo, 0.3)
    assert small.shape == (15, 21, 3)
    y, x = ((np.arange(n) + 0.5) / 0.3 - 0.5 for n in small.shape[:2])
    low, left = np.floor(y).astype(int), np.floor(x).astype(int)
    dy, dx = (y - low)[:, None, None], (x - left)[None, :, None]
    p = photo.astype(float)
    expected = (p[low][:, left] * (1 - dx) + p[low][:, left + 1] * dx) * (1 - dy)
    expected += (p[low + 1][:, left] * (1 - dx) + p[low + 1][:, left + 1] * dx) * dy
    assert np.abs(small - expected).max() < 1


def test_spatter_without_liquid_does_not_change_the_image() -> None:
    images = torch.from_numpy(load_enlarged_digits().test.images[:2])
    for severity in (1, 5):
        parameters = CORRUPTIONS["spatter"].get_parameters(32, severity)
        corrupted = CORRUPTIONS["spatter"].apply(images, parameters, torch.zeros(2, 32, 32, dtype=torch.float64))
        assert (corrupted.int() - images.int()).abs().max() <= 1  # in float32, x / 255 * 255 can be slightly below x


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "rain"}, "no corruption is called 'rain'"),
        ({"severity": 6}, "a severity must be a whole number from 1 to 5; got 6"),
        (
            {"images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)},
            "of 32, 64 or 224 pixels, and this batch has images of 3",
        ),
        ({"images": torch.zeros(2, 1, 32, 32, dtype=torch.uint8)}, "this batch has images of 1 x 32 x 32"),
        (
            {"images": torch.zeros(2, 3, 32, 32)},
            "images to corrupt must be square, uint8 (n, 3, h, w); got torch.float32",
        ),
        ({"images": torch.zeros(2, 3, 32, 64, dtype=torch.uint8)}, "images to corrupt must be square"),
        ({"name": "frost"}, "the corruption frost needs photos; download them with `lcrbnn data frost`"),
    ],
)
def test_invalid_arguments_are_rejected(change: dict, message: str) -> None:
    arguments = {"images": make_images(2), "name": "fog", "severity": 1, "indices": torch.arange(2), **change}
    with pytest.raises(InputError) as caught:
        apply_corruption(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_broken_photos_are_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"frost1\.png is missing; download all five with `lcrbnn data frost --data-folder"
    ):
        FrostPhotos(tmp_path / "frost")
    folder = write_frost_photos(tmp_path / "frost")
    (folder / "frost4.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"the frost photo .*frost4\.jpg cannot be read"):
        FrostPhotos(folder)
