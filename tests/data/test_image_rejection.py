"""All commands that read images reject the same files: too many pixels, damaged headers and other formats."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.download import SourceUnreachable, decode_sheet
from lcrbnn.data.image_files.decode import open_image
from lcrbnn.data.image_files.image_index import BrokenImage
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.pictures import read_picture
from lcrbnn.errors import InputError
from lcrbnn.evaluation.corruptions.frost_photos import PHOTO_SHA256, FrostPhotos
from lcrbnn.evaluation.robustness.corrupted_sets import open_corrupted_folder
from lcrbnn.report.sections.samples_section import build_samples_section
from tests.data.image_folders import encode_image
from tests.data.test_decode import RGB, make_png, make_png_start
from tests.evaluation.corruptions.helpers import (
    DATASET_NAME,
    load_enlarged_digits,
    register_enlarged_digits,
    write_frost_photos,
)
from tests.evaluation.corruptions.test_corrupted_sets import CORRUPTION_NAMES, damaged_image_path, write_imagenet_c


def make_png_with_short_header() -> bytes:
    """Return a PNG whose IHDR chunk has 5 bytes and a correct checksum."""
    return make_png((b"IHDR", bytes(5)), (b"IDAT", bytes(100)), (b"IEND", b""))


def make_png_with_second_header() -> bytes:
    """Return a PNG that ends with a second, empty IHDR chunk. Pillow reads only the first."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return make_png((b"IHDR", header), (b"IDAT", zlib.compress(b"\0\0")), (b"IHDR", b""))


REJECTED_IMAGES: dict[str, tuple[Callable[[], bytes], str]] = {
    "too many pixels": (lambda: make_png_start(40_000, 40_000), "more than 100,000,000 pixels"),
    "a short IHDR": (make_png_with_short_header, "it cannot be decoded"),
    "an empty second IHDR": (make_png_with_second_header, "it ends before its last chunk"),
    "an EPS file": (lambda: encode_image(RGB, "EPS"), "it is not an image that Pillow can read"),
}


def read_for_report(path: Path) -> None:
    build_samples_section("cifar10", path, path.parent / "no frost")


def read_for_predict(path: Path) -> None:
    read_picture(path, BnnModel("", (4, 6, 3), 255.0, (0.0,) * 3, (1.0,) * 3, ("a",), ()))


def read_as_frost(path: Path) -> None:
    folder = write_frost_photos(path.parent / "frost")
    (folder / next(iter(PHOTO_SHA256))).unlink()
    path.rename(folder / next(iter(PHOTO_SHA256)))
    FrostPhotos(folder)


def read_as_corrupted_set(path: Path) -> None:
    folder = write_imagenet_c(path.parent / "official")
    damaged_image_path(folder).unlink()
    path.rename(damaged_image_path(folder))
    corrupted_set = open_corrupted_folder(
        folder, CORRUPTION_NAMES, DATASETS[DATASET_NAME], load_enlarged_digits().test, None, torch.device("cpu")
    )
    list(corrupted_set.iter_batches("snow", 2))


READERS = (read_for_report, read_for_predict, read_as_frost, read_as_corrupted_set)


@pytest.fixture
def ghostscript_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program gs on the PATH, and return the file that it creates when it is started."""
    marker, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    return marker


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", REJECTED_IMAGES)
def test_every_reader_rejects_the_image_with_the_same_reason(
    kind: str, reader: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ghostscript_marker: Path
) -> None:
    register_enlarged_digits(monkeypatch)
    make_content, reason = REJECTED_IMAGES[kind]
    path = tmp_path / "x.png"
    path.write_bytes(make_content())
    with pytest.raises(InputError, match=reason) as error_info:
        reader(path)
    assert "\n" not in str(error_info.value)
    assert not ghostscript_marker.exists()


@pytest.mark.parametrize("kind", REJECTED_IMAGES)
def test_a_sheet_of_the_npm_package_is_rejected_with_the_same_reason(kind: str, ghostscript_marker: Path) -> None:
    make_content, reason = REJECTED_IMAGES[kind]
    with pytest.raises(SourceUnreachable, match=reason):
        decode_sheet("test_batch.png", make_content())
    assert not ghostscript_marker.exists()


def test_a_png_with_a_second_header_at_its_end_is_broken() -> None:
    with pytest.raises(BrokenImage, match="it ends before its last chunk"):
        open_image(make_png_with_second_header())


def test_alpha_of_a_frost_photo_is_ignored_as_by_opencv(tmp_path: Path) -> None:
    folder = write_frost_photos(tmp_path / "frost")
    name = next(iter(PHOTO_SHA256))
    colours = np.asarray(Image.open(folder / name))
    with_alpha = np.dstack([colours, np.zeros(colours.shape[:2], np.uint8)])
    expected = FrostPhotos(folder).crop_photos(224, torch.tensor([0]), torch.tensor([[0, 0]]))
    Image.fromarray(with_alpha).save(folder / name)
    assert torch.equal(FrostPhotos(folder).crop_photos(224, torch.tensor([0]), torch.tensor([[0, 0]])), expected)
