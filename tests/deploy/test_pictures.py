"""Reading picture files as the pixels of a model."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from lcrbnn.data.image_files.read_arrays import decode_and_center_crop
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.pictures import UnreadablePicture, find_pictures, read_picture
from lcrbnn.errors import InputError


def make_model(channels: int = 3, max_pixel_value: float = 255) -> BnnModel:
    return BnnModel("", (4, 6, channels), max_pixel_value, (0.0,) * channels, (1.0,) * channels, ("a",), ())


def save_image(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path)
    return path


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)


def test_a_picture_of_the_models_size_is_not_resized(tmp_path: Path, pixels: np.ndarray) -> None:
    picture = read_picture(save_image(tmp_path / "a.png", pixels), make_model())
    assert picture.dtype == np.float32
    assert np.array_equal(picture, pixels)


def test_pixels_are_scaled_to_the_maximum_of_the_model(tmp_path: Path, pixels: np.ndarray) -> None:
    picture = read_picture(save_image(tmp_path / "a.png", pixels), make_model(max_pixel_value=16))
    assert np.allclose(picture, pixels / 255 * 16, atol=1e-5)


def test_a_grey_model_gets_a_grey_picture(tmp_path: Path, pixels: np.ndarray) -> None:
    picture = read_picture(save_image(tmp_path / "a.png", pixels), make_model(1))
    assert np.array_equal(picture[..., 0], np.asarray(Image.fromarray(pixels).convert("L")))


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "I;16"])
def test_all_modes_are_converted_to_three_channels(tmp_path: Path, pixels: np.ndarray, mode: str) -> None:
    picture = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16))
    picture.save(tmp_path / "a.tif")
    assert read_picture(tmp_path / "a.tif", make_model()).shape == (4, 6, 3)


def test_transparent_pixels_are_black(tmp_path: Path, pixels: np.ndarray) -> None:
    with_alpha = np.concatenate([pixels, np.zeros((4, 6, 1), np.uint8)], axis=2)
    with_alpha[0, 0, 3] = 255
    picture = read_picture(save_image(tmp_path / "a.png", with_alpha), make_model())
    assert np.array_equal(picture[0, 0], pixels[0, 0])
    assert not picture[1:].any()


def test_another_size_is_resized_and_center_cropped(tmp_path: Path) -> None:
    image = np.zeros((8, 40, 3), np.uint8)
    image[:, 12:28] = 200  # the centre crop shows the middle twelve columns and a little of their neighbours
    assert (read_picture(save_image(tmp_path / "a.png", image), make_model()) == 200).all()


def test_folders_are_searched_in_order(tmp_path: Path, pixels: np.ndarray) -> None:
    (tmp_path / "in").mkdir()
    paths = [save_image(tmp_path / name, pixels) for name in ("b.png", "in/a.jpg", "c.PNG".lower())]
    (tmp_path / "notes.txt").write_text("no picture")
    assert find_pictures([tmp_path]) == sorted(paths)
    assert find_pictures([paths[2], paths[0]]) == [paths[2], paths[0]]


def test_invalid_pictures_are_rejected(tmp_path: Path, pixels: np.ndarray) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    save_image(tmp_path / "cut.png", pixels)
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    (tmp_path / "empty").mkdir()
    for path in ("a.png", "cut.png"):
        with pytest.raises(InputError, match="cannot be read as a picture"):
            read_picture(tmp_path / path, make_model())
    with pytest.raises(InputError, match="there is no picture"):
        find_pictures([tmp_path / "nothing.png"])
    with pytest.raises(InputError, match="there is no picture in"):
        find_pictures([tmp_path / "empty"])
    with pytest.raises(InputError, match="input of this model has 2 channels"):
        read_picture(tmp_path / "a.png", make_model(2))


@pytest.mark.parametrize("exif", [b"", b"XX*", b"MM\0*\0\0\0\x08\0\x01\x01"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_picture_whose_orientation_cannot_be_read_is_broken(
    kind: str, exif: bytes, tmp_path: Path, pixels: np.ndarray
) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.png", kind, exif=b"Exif\0\0" + exif)
    if exif:
        with pytest.raises(UnreadablePicture, match="cannot be read as a picture: its EXIF data cannot be decoded"):
            read_picture(tmp_path / "a.png", make_model())


def make_square_model(resize_ratio: float = 1.0, channels: int = 3) -> BnnModel:
    return BnnModel("", (6, 6, channels), 255, (0.0,) * channels, (1.0,) * channels, ("a",), (), resize_ratio)


@pytest.mark.parametrize("resize_ratio", [1.0, 256 / 224, 2.0])
@pytest.mark.parametrize("size", [(6, 6), (12, 40), (40, 12), (300, 9), (9, 7)])
def test_a_picture_is_cropped_as_in_evaluation(tmp_path: Path, size: tuple[int, int], resize_ratio: float) -> None:
    path = save_image(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    assert np.array_equal(
        read_picture(path, make_square_model(resize_ratio)), decode_and_center_crop(path.read_bytes(), 6, resize_ratio)
    )


def test_the_margin_around_the_center_crop_is_cut_off(tmp_path: Path) -> None:
    image = np.full((24, 24, 3), 255, np.uint8)
    image[3:-3, 3:-3] = 80
    path = save_image(tmp_path / "a.png", image)
    assert (read_picture(path, make_square_model(2.0)) == 80).all()
    assert (read_picture(path, make_square_model())[0] > 80).all()
    wide_model = BnnModel("", (4, 6, 3), 255, (0.0,) * 3, (1.0,) * 3, ("a",), (), 2.0)
    assert (read_picture(path, wide_model) == 80).all()


def test_16_bits_are_rounded_and_modes_with_unknown_scale_rejected(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (6, 6), np.uint8)
    save_image(tmp_path / "8.png", grey)
    save_image(tmp_path / "16.png", grey.astype(np.uint16) * 257)
    for channels in (1, 3):
        eight, sixteen = (
            read_picture(tmp_path / name, make_square_model(1.0, channels)) for name in ("8.png", "16.png")
        )
        assert np.array_equal(eight, sixteen)
        assert np.array_equal(eight[..., 0], grey)
    for name, numbers in (("real.tif", grey / np.float32(255)), ("whole.tif", grey.astype(np.int32))):
        with pytest.raises(InputError, match=r"cannot be read as a picture: its pixels have Pillow's mode [FI],"):
            read_picture(save_image(tmp_path / name, numbers), make_square_model())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(tmp_path: Path, pixels: np.ndarray, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.png")))
    h, w, _ = upright.shape
    picture = read_picture(tmp_path / "a.png", BnnModel("", (h, w, 3), 255, (0.0,) * 3, (1.0,) * 3, ("a",), ()))
    assert np.array_equal(picture, upright)


def test_hidden_files_and_folders_are_ignored(tmp_path: Path, pixels: np.ndarray) -> None:
    good = save_image(tmp_path / "a.png", pixels)
    (tmp_path / "._a.png").write_bytes(b"resource fork")
    (tmp_path / ".cache").mkdir()
    save_image(tmp_path / ".cache" / "b.png", pixels)
    (tmp_path / "folder.png").mkdir()
    assert find_pictures([tmp_path]) == [good]
    (tmp_path / ".hidden").mkdir()
    inside = save_image(tmp_path / ".hidden" / "c.png", pixels)
    assert find_pictures([tmp_path / ".hidden"]) == [inside]  # this folder was named explicitly
    with pytest.raises(InputError, match="cannot be read as a picture"):
        read_picture(tmp_path / "folder.png", make_model())
