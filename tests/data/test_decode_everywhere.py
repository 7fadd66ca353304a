"""Every command that reads a picture refuses the same files: giants, short headers, formats outside the list, pipes."""

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

from lcrbnn.corrupt.official import open_folder
from lcrbnn.corrupt.photos import Photos
from lcrbnn.data import DATASETS
from lcrbnn.data.decode import open_picture
from lcrbnn.data.fetch import OutOfReach, decode_sheet
from lcrbnn.data.frost import PHOTOS
from lcrbnn.data.listing import Broken
from lcrbnn.data.pictures import read_picture
from lcrbnn.engine import Model
from lcrbnn.errors import InputError
from lcrbnn.report.samples import samples
from tests.corrupt.helpers import NAME, digits, know_digits, put_photos
from tests.corrupt.test_official import NAMES, first_picture, pictures
from tests.data.test_decode import RGB, giant, png
from tests.data.trees import encoded


def short_header() -> bytes:
    """A PNG whose IHDR has 5 bytes and a correct checksum."""
    return png((b"IHDR", bytes(5)), (b"IDAT", bytes(100)), (b"IEND", b""))


def second_header() -> bytes:
    """A PNG that ends in a second IHDR, of no bytes: Pillow reads only the first."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return png((b"IHDR", head), (b"IDAT", zlib.compress(b"\0\0")), (b"IHDR", b""))


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a giant": (lambda: giant(40_000, 40_000), "more than 100,000,000 pixels"),
    "a short IHDR": (short_header, "it cannot be decoded"),
    "an empty second IHDR": (second_header, "it ends before its last chunk"),
    "an EPS file": (lambda: encoded(RGB, "EPS"), "it is no image that Pillow knows"),
}


def read_for_report(path: Path) -> None:
    samples("cifar10", path, path.parent / "no frost")


def read_for_predict(path: Path) -> None:
    read_picture(path, Model("", (4, 6, 3), 255.0, (0.0,) * 3, (1.0,) * 3, ("a",), ()))


def read_as_frost(path: Path) -> None:
    folder = put_photos(path.parent / "frost")
    (folder / next(iter(PHOTOS))).unlink()
    path.rename(folder / next(iter(PHOTOS)))
    Photos(folder)


def read_as_official(path: Path) -> None:
    folder = pictures(path.parent / "official")
    first_picture(folder).unlink()
    path.rename(first_picture(folder))
    shown = open_folder(folder, NAMES, DATASETS[NAME], digits().test, None, torch.device("cpu"))
    list(shown.batches("snow", 2))


READERS = (read_for_report, read_for_predict, read_as_frost, read_as_official)


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH with a program gs, and the file that gs leaves when it is started."""
    started, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    return started


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_every_reader_refuses_the_picture_with_the_same_reason(
    kind: str, reader: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ghostscript: Path
) -> None:
    know_digits(monkeypatch)
    make, reason = REFUSED[kind]
    path = tmp_path / "x.png"
    path.write_bytes(make())
    with pytest.raises(InputError, match=reason) as caught:
        reader(path)
    assert "\n" not in str(caught.value)
    assert not ghostscript.exists()


@pytest.mark.parametrize("kind", REFUSED)
def test_a_sheet_of_the_npm_package_is_read_in_the_same_way(kind: str, ghostscript: Path) -> None:
    make, reason = REFUSED[kind]
    with pytest.raises(OutOfReach, match=reason):
        decode_sheet("test_batch.png", make())
    assert not ghostscript.exists()


def test_a_second_header_at_the_end_of_a_png_is_broken() -> None:
    with pytest.raises(Broken, match="it ends before its last chunk"):
        open_picture(second_header())


def test_alpha_of_a_frost_photo_is_ignored_as_by_opencv(tmp_path: Path) -> None:
    folder = put_photos(tmp_path / "frost")
    name = next(iter(PHOTOS))
    colours = np.asarray(Image.open(folder / name))
    clear = np.dstack([colours, np.zeros(colours.shape[:2], np.uint8)])
    before = Photos(folder).crops(224, torch.tensor([0]), torch.tensor([[0, 0]]))
    Image.fromarray(clear).save(folder / name)
    assert torch.equal(Photos(folder).crops(224, torch.tensor([0]), torch.tensor([[0, 0]])), before)
