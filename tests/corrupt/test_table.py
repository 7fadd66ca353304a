from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.corrupt import table
from lcrbnn.corrupt.constants import CONSTANTS, SIDES
from lcrbnn.corrupt.photos import SHARE, Photos, resized
from lcrbnn.corrupt.source import Source
from lcrbnn.corrupt.table import CORRUPTIONS, corrupt
from lcrbnn.corrupt.weather import draw_crop, frost
from lcrbnn.errors import InputError
from tests.corrupt.helpers import digits, put_photos

DRAWING = [name for name, row in CORRUPTIONS.items() if row.draw is not table._nothing]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return Photos(put_photos(tmp_path_factory.mktemp("photos")))


def pictures(count: int = 5, side: int = 32) -> Tensor:
    """Smooth noise over a digit: something for every corruption to change."""
    draw = torch.Generator().manual_seed(1)
    noise = torch.rand(count, 3, 8, 8, generator=draw) * 255
    return torch.nn.functional.interpolate(noise, size=side, mode="bilinear").to(torch.uint8)


def test_there_are_fifteen_corruptions_and_four_more_in_four_families() -> None:
    assert len(CORRUPTIONS) == 19
    assert [row.name for row in CORRUPTIONS.values() if not row.main] == [
        "speckle_noise",
        "gaussian_blur",
        "spatter",
        "saturate",
    ]
    assert {row.family for row in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}
    assert list(CONSTANTS) == sorted(CONSTANTS, key=list(CORRUPTIONS).index)
    assert all(set(rows) == set(SIDES) and all(len(five) == 5 for five in rows.values()) for rows in CONSTANTS.values())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_corrupted_alike_in_any_batch(name: str, photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    images, rows = pictures(), torch.tensor([0, 3, 17, 900, 41])
    whole = corrupt(images, name, 5, rows, photos)
    assert whole.dtype == torch.uint8
    assert whole.shape == images.shape
    assert not torch.equal(whole, images)
    monkeypatch.setattr(table, "FEWEST", 2)
    monkeypatch.setattr(table, "PIXELS", 1)
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.equal(corrupt(images[order], name, 5, rows[order], photos), whole[order])
    assert torch.equal(corrupt(images[1:2], name, 5, rows[1:2], photos), whole[1:2])


@pytest.mark.parametrize("name", DRAWING)
def test_draws_differ_with_image_severity_and_split(name: str, photos: Photos) -> None:
    images, rows = pictures(1).repeat(2, 1, 1, 1), torch.tensor([0, 1])
    test, train = (corrupt(images, name, 4, rows, photos, split=split) for split in ("test", "train"))
    assert not torch.equal(test[0], test[1])
    assert not torch.equal(test, train)
    row = CORRUPTIONS[name]
    constant = row.constant(32, 4)
    drawn = [row.draw(Source(f"0/test/{name}/{severity}", rows, photos), images, constant) for severity in (4, 5)]
    first, second = (d[0][0] if isinstance(d[0], list) else d[0] for d in drawn)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("side", [64, 224])
def test_larger_images_take_every_corruption_too(side: int, photos: Photos) -> None:
    images = pictures(1, side)
    for name in CORRUPTIONS:
        made = corrupt(images, name, 3, torch.tensor([5]), photos)
        assert made.shape == images.shape, name
        assert not torch.equal(made, images), name


def test_glass_copies_what_the_other_pixel_has_by_then() -> None:
    """Against a loop over pixels, where moves reach backwards too."""
    side, constant = 12, (0.01, 3, 2)
    images = pictures(2, side)
    moves = CORRUPTIONS["glass_blur"].draw(Source("g", torch.arange(2)), images, constant)[0]
    made = CORRUPTIONS["glass_blur"].apply(images, constant, moves)
    for wanted, away, got in zip(images.clone(), moves, made, strict=True):
        for step in away:
            for h in range(side - 3, 3, -1):
                for w in range(side - 3, 3, -1):
                    wanted[:, h, w] = wanted[:, h + step[1, h, w], w + step[0, h, w]]
        assert torch.equal(got, wanted)


def test_frost_is_a_piece_of_a_photo_with_its_weight(photos: Photos) -> None:
    images = pictures(40)
    (crop,) = draw_crop(Source("f", torch.arange(40), photos), images, (0.75, 0.45))
    sheets = [resized(photo, 0.2).transpose(2, 0, 1) for photo in photos._whole]
    windows = [np.lib.stride_tricks.sliding_window_view(s, (3, 32, 32)).reshape(-1, 3, 32, 32) for s in sheets]
    found = [next(i for i, w in enumerate(windows) if (w == c.numpy()).all((1, 2, 3)).any()) for c in crop]
    assert set(found) == set(range(5))
    wanted = np.clip(0.75 * images.numpy() + 0.45 * crop.numpy(), 0, 255).astype(np.uint8)
    assert np.array_equal(frost(images, (0.75, 0.45), crop).numpy(), wanted)


def test_frost_has_the_published_weights_and_sizes_of_its_photos() -> None:
    """Those of the three published codes: image and frost by severity, and how small a photo is made first."""
    assert CONSTANTS["frost"] == {
        32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        64: ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    }
    assert SHARE == {32: 0.2, 64: 0.3, 224: 1.0}


def test_a_photo_is_resized_by_straight_interpolation() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    assert np.array_equal(resized(photo, 0.2), photo[2::5, 2::5])  # the middle of five
    assert resized(photo, 1.0) is photo
    small = resized(photo, 0.3)
    assert small.shape == (15, 21, 3)
    y, x = ((np.arange(n) + 0.5) / 0.3 - 0.5 for n in small.shape[:2])
    low, left = np.floor(y).astype(int), np.floor(x).astype(int)
    dy, dx = (y - low)[:, None, None], (x - left)[None, :, None]
    p = photo.astype(float)
    wanted = (p[low][:, left] * (1 - dx) + p[low][:, left + 1] * dx) * (1 - dy)
    wanted += (p[low + 1][:, left] * (1 - dx) + p[low + 1][:, left + 1] * dx) * dy
    assert np.abs(small - wanted).max() < 1


def test_an_image_without_a_drop_of_liquid_stays() -> None:
    images = torch.from_numpy(digits().test.images[:2])
    for severity in (1, 5):
        constant = CORRUPTIONS["spatter"].constant(32, severity)
        made = CORRUPTIONS["spatter"].apply(images, constant, torch.zeros(2, 32, 32, dtype=torch.float64))
        assert (made.int() - images.int()).abs().max() <= 1  # float32: x / 255 * 255 may lie just under x


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "rain"}, "no corruption is called 'rain'; there are gaussian_noise,"),
        ({"severity": 6}, "a severity must be a whole number from 1 to 5; got 6"),
        (
            {"images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)},
            "of 32, 64 or 224 pixels, and this batch has images of 3",
        ),
        ({"images": torch.zeros(2, 1, 32, 32, dtype=torch.uint8)}, "this batch has images of 1 x 32 x 32"),
        ({"images": torch.zeros(2, 3, 32, 32)}, "images to corrupt are square, uint8 (n, 3, h, w); got torch.float32"),
        ({"images": torch.zeros(2, 3, 32, 64, dtype=torch.uint8)}, "images to corrupt are square"),
        ({"name": "frost"}, "frost needs its photos: `lcrbnn data frost` fetches them"),
    ],
)
def test_what_cannot_be_corrupted_is_refused_in_one_sentence(change: dict, sentence: str) -> None:
    given = {"images": pictures(2), "name": "fog", "severity": 1, "rows": torch.arange(2), **change}
    with pytest.raises(InputError) as caught:
        corrupt(**given)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_photos_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"frost1\.png is not there; `lcrbnn data frost --data-folder"):
        Photos(tmp_path / "frost")
    folder = put_photos(tmp_path / "frost")
    (folder / "frost4.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"the frost photo .*frost4\.jpg cannot be read"):
        Photos(folder)
