"""CIFAR-10 from its official files: the binary version, or the pickled one without running what a pickle may hold."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.data.listing import other_kind
from lcrbnn.data.split import Images, Split
from lcrbnn.errors import InputError

SHAPE = (3, 32, 32)
_ROW = 1 + 3 * 32 * 32  # a label, then red, green and blue, row by row
_FEW = 20_000  # training images of the small data set: the first ones


class Layout(NamedTuple):
    """One official way to store the images: its usual folder, the MD5 of each file (the test's last), its reader."""

    folder: str
    files: dict[str, str]
    read: Callable[[bytes, Path], Split]


def load_cifar10(folder: Path) -> Images:
    """Read the six official files of either layout from `folder`, or from the folder that their archives make in it."""
    found = _find(folder)
    if found is None and folder.exists() and not folder.is_dir():
        raise InputError(f"CIFAR-10 comes from a folder, and {folder} is {other_kind(folder) or 'a file'}")
    if found is None:
        names = " or ".join(layout.folder for layout in LAYOUTS)
        raise InputError(
            f"CIFAR-10 is not in {folder}: neither its files nor a folder {names}; "
            f"`lcrbnn data cifar10 --data-folder {folder}` fetches it"
        )
    where, layout = found
    parts = [layout.read(_verified(where / name, md5), where / name) for name, md5 in layout.files.items()]
    train = Split(np.concatenate([p.images for p in parts[:-1]]), np.concatenate([p.labels for p in parts[:-1]]))
    return Images(train, parts[-1])


def load_small_cifar10(folder: Path) -> Images:
    """The same files as a smaller data set: the first 20,000 training images and all test images, at half the side."""
    whole = load_cifar10(folder)
    first = np.arange(min(_FEW, len(whole.train.labels)))
    return Images(_halved(whole.train.take(first)), _halved(whole.test))


def _halved(split: Split) -> Split:
    """Each pixel the mean of four, rounded half up."""
    n, channels, height, width = split.images.shape
    fours = split.images.reshape(n, channels, height // 2, 2, width // 2, 2)
    return Split(((fours.sum((3, 5), dtype=np.uint16) + 2) // 4).astype(np.uint8), split.labels)


def _find(folder: Path) -> tuple[Path, Layout] | None:
    """The first place with all files of a layout; otherwise the first with any of them, which says what is missing."""
    places = [(where, layout) for layout in LAYOUTS for where in (folder, folder / layout.folder)]
    for enough in (all, any):
        for where, layout in places:
            if enough((where / name).exists() for name in layout.files):
                return where, layout
    return None


def _verified(path: Path, md5: str) -> bytes:
    """The content of an official file; anything else is refused before it is looked into."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    seen = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if seen != md5:
        raise InputError(
            f"{path} is not the official file: its MD5 is {seen} instead of {md5} ({len(content):,} bytes)"
        )
    return content


def read_binary(content: bytes, path: Path) -> Split:
    """A file of the binary version."""
    if not content or len(content) % _ROW:
        raise InputError(f"{path} holds {len(content):,} bytes, which is no whole number of images of {_ROW} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW)
    return _split(rows[:, 1:], rows[:, 0], path)


def read_pickled(content: bytes, path: Path) -> Split:
    """A file of the Python version: a pickled dictionary of NumPy arrays and lists.

    Nothing in it is run. Its content is trusted all the same, for its MD5 was checked: forged arrays could crash NumPy.
    """
    try:
        stored = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise InputError(f"{path} is no pickle of arrays: {error}") from None
    if not isinstance(stored, dict) or not {b"data", b"labels"} <= set(stored):
        raise InputError(f"{path} does not hold the data and labels of CIFAR-10")
    return _split(np.asarray(stored[b"data"]), np.asarray(stored[b"labels"]), path)


def _split(images: np.ndarray, labels: np.ndarray, path: Path) -> Split:
    if labels.ndim != 1 or images.shape != (len(labels), _ROW - 1) or images.dtype != np.uint8:
        raise InputError(f"{path} holds images of shape {images.shape} and type {images.dtype}, not rows of 3072 bytes")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0 or labels.max(initial=0) > 9:
        raise InputError(f"{path} holds labels outside 0 to 9")
    return Split(images.reshape(-1, *SHAPE).copy(), labels.astype(np.int64))


class _ArraysOnly(pickle.Unpickler):
    """Makes NumPy arrays and plain Python values; any other name in the pickle is refused and never looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) == ("numpy.core.multiarray", "_reconstruct"):
            return _reconstruct
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 pickles bytes for readers of Python 2
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")


def _reconstruct(kind: Any, shape: Any, typecode: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("it asks for an array of an unknown kind")
    return np.ndarray((0,), np.uint8)  # its state, set next by the unpickler, replaces shape and type


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


LAYOUTS = [
    Layout(
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        read_binary,
    ),
    Layout(
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        read_pickled,
    ),
]
