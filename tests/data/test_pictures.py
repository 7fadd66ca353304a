from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from lcrbnn.data.pictures import Unreadable, find_pictures, read_picture
from lcrbnn.data.pixels import pillow_square
from lcrbnn.engine import Model
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


@pytest.mark.parametrize("exif", [b"", b"XX*", b"MM\0*\0\0\0\x08\0\x01\x01"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_picture_whose_orientation_cannot_be_read_is_broken(
    kind: str, exif: bytes, tmp_path: Path, pixels: np.ndarray
) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.png", kind, exif=b"Exif\0\0" + exif)
    if exif:
        with pytest.raises(Unreadable, match="is no picture that can be read: its EXIF data cannot be decoded"):
            read_picture(tmp_path / "a.png", model())


def square(margin: float = 1.0, channels: int = 3) -> Model:
    return Model("", (6, 6, channels), 255, (0.0,) * channels, (1.0,) * channels, ("a",), (), margin)


@pytest.mark.parametrize("margin", [1.0, 256 / 224, 2.0])
@pytest.mark.parametrize("size", [(6, 6), (12, 40), (40, 12), (300, 9), (9, 7)])
def test_a_picture_is_cut_as_images_are_for_evaluation(tmp_path: Path, size: tuple[int, int], margin: float) -> None:
    path = saved(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    assert np.array_equal(read_picture(path, square(margin)), pillow_square(path.read_bytes(), 6, margin))


def test_a_margin_is_left_off_all_around(tmp_path: Path) -> None:
    framed = np.full((24, 24, 3), 255, np.uint8)
    framed[3:-3, 3:-3] = 80
    path = saved(tmp_path / "a.png", framed)
    assert (read_picture(path, square(2.0)) == 80).all()
    assert (read_picture(path, square())[0] > 80).all()
    wide = Model("", (4, 6, 3), 255, (0.0,) * 3, (1.0,) * 3, ("a",), (), 2.0)
    assert (read_picture(path, wide) == 80).all()


def test_sixteen_bits_are_rounded_and_numbers_without_a_scale_refused(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (6, 6), np.uint8)
    saved(tmp_path / "8.png", grey)
    saved(tmp_path / "16.png", grey.astype(np.uint16) * 257)
    for channels in (1, 3):
        eight, sixteen = (read_picture(tmp_path / name, square(1.0, channels)) for name in ("8.png", "16.png"))
        assert np.array_equal(eight, sixteen)
        assert np.array_equal(eight[..., 0], grey)
    for name, numbers in (("real.tif", grey / np.float32(255)), ("whole.tif", grey.astype(np.int32))):
        with pytest.raises(InputError, match=r"is no picture that can be read: its pixels are of Pillow's mode [FI],"):
            read_picture(saved(tmp_path / name, numbers), square())


@pytest.mark.parametrize("held", range(1, 9))
def test_a_picture_turned_by_its_camera_is_turned_back(tmp_path: Path, pixels: np.ndarray, held: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = held
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.png")))
    h, w, _ = upright.shape
    found = read_picture(tmp_path / "a.png", Model("", (h, w, 3), 255, (0.0,) * 3, (1.0,) * 3, ("a",), ()))
    assert np.array_equal(found, upright)


def test_hidden_files_and_folders_called_like_pictures_are_passed_over(tmp_path: Path, pixels: np.ndarray) -> None:
    good = saved(tmp_path / "a.png", pixels)
    (tmp_path / "._a.png").write_bytes(b"resource fork")
    (tmp_path / ".cache").mkdir()
    saved(tmp_path / ".cache" / "b.png", pixels)
    (tmp_path / "folder.png").mkdir()
    assert find_pictures([tmp_path]) == [good]
    (tmp_path / ".hidden").mkdir()
    inside = saved(tmp_path / ".hidden" / "c.png", pixels)
    assert find_pictures([tmp_path / ".hidden"]) == [inside]  # it was asked for
    with pytest.raises(InputError, match="is no picture that can be read"):
        read_picture(tmp_path / "folder.png", model())
