from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lcrbnn.engine import Model
from lcrbnn.engine.pictures import find_pictures, read_picture
from lcrbnn.errors import InputError


def model(channels: int = 3, top: float = 255) -> Model:
    return Model("", (4, 6, channels), top, (0.0,) * channels, (1.0,) * channels, ("a",), ())


def saved(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    picture = Image.fromarray(pixels)
    (picture if mode is None else picture.convert(mode)).save(path)
    return path


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)


def test_a_picture_of_the_models_size_is_its_pixels(tmp_path: Path, pixels: np.ndarray) -> None:
    found = read_picture(saved(tmp_path / "a.png", pixels), model())
    assert found.dtype == np.float32
    assert np.array_equal(found, pixels)


def test_pixels_go_up_to_the_models_top(tmp_path: Path, pixels: np.ndarray) -> None:
    found = read_picture(saved(tmp_path / "a.png", pixels), model(top=16))
    assert np.allclose(found, pixels / 255 * 16, atol=1e-5)


def test_a_grey_model_sees_grey(tmp_path: Path, pixels: np.ndarray) -> None:
    found = read_picture(saved(tmp_path / "a.png", pixels), model(1))
    assert np.array_equal(found[..., 0], np.asarray(Image.fromarray(pixels).convert("L")))


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "I;16"])
def test_any_mode_becomes_three_channels(tmp_path: Path, pixels: np.ndarray, mode: str) -> None:
    picture = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16))
    picture.save(tmp_path / "a.tif")
    assert read_picture(tmp_path / "a.tif", model()).shape == (4, 6, 3)


def test_transparency_is_black(tmp_path: Path, pixels: np.ndarray) -> None:
    clear = np.concatenate([pixels, np.zeros((4, 6, 1), np.uint8)], axis=2)
    clear[0, 0, 3] = 255
    found = read_picture(saved(tmp_path / "a.png", clear), model())
    assert np.array_equal(found[0, 0], pixels[0, 0])
    assert not found[1:].any()


def test_another_size_is_scaled_to_cover_and_cut_at_its_sides(tmp_path: Path) -> None:
    wide = np.zeros((8, 40, 3), np.uint8)
    wide[:, 12:28] = 200  # a 4 x 6 window sees the middle twelve columns, and a little of their neighbours
    assert (read_picture(saved(tmp_path / "a.png", wide), model()) == 200).all()


def test_folders_are_searched_in_order(tmp_path: Path, pixels: np.ndarray) -> None:
    (tmp_path / "in").mkdir()
    paths = [saved(tmp_path / name, pixels) for name in ("b.png", "in/a.jpg", "c.PNG".lower())]
    (tmp_path / "notes.txt").write_text("no picture")
    assert find_pictures([tmp_path]) == sorted(paths)
    assert find_pictures([paths[2], paths[0]]) == [paths[2], paths[0]]


def test_what_is_no_picture_gets_a_sentence(tmp_path: Path, pixels: np.ndarray) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    saved(tmp_path / "cut.png", pixels)
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    (tmp_path / "empty").mkdir()
    for path in ("a.png", "cut.png"):
        with pytest.raises(InputError, match="is no picture that can be read"):
            read_picture(tmp_path / path, model())
    with pytest.raises(InputError, match="there is no picture"):
        find_pictures([tmp_path / "nothing.png"])
    with pytest.raises(InputError, match="there is no picture in"):
        find_pictures([tmp_path / "empty"])
    with pytest.raises(InputError, match="this model takes 2"):
        read_picture(tmp_path / "a.png", model(2))
