"""Read CIFAR-10 from its official files. Of the pickled version, no code is executed."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.data.image_files.image_index import describe_non_file
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import InputError

IMAGE_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32  # bytes per image: the label, then the red, green and blue pixels
_NUM_SMALL_TRAIN_IMAGES = 20_000  # number of training images in the small version: the first ones of the data set


class CifarLayout(NamedTuple):
    """One layout of the official files, with the folder, the MD5 of each file (test images last) and the reader."""

    folder: str
    files: dict[str, str]
    read: Callable[[bytes, Path], Split]


def load_cifar10(folder: Path) -> ImageArrays:
    """Return CIFAR-10 from its six official files, in either layout, in `folder` or a subfolder of `folder`.

    The subfolder is the one that the official archive creates. Raise InputError if a file is missing or is not the
    official file.
    """
    location = _find_files(folder)
    if location is None and folder.exists() and not folder.is_dir():
        raise InputError(f"CIFAR-10 is read from a folder, but {folder} is {describe_non_file(folder) or 'a file'}")
    if location is None:
        names = " or ".join(layout.folder for layout in LAYOUTS)
        raise InputError(
            f"CIFAR-10 was not found in {folder}, which has neither its files nor a folder {names}; "
            f"download it with `lcrbnn data cifar10 --data-folder {folder}`"
        )
    file_folder, layout = location
    paths = {file_folder / name: md5 for name, md5 in layout.files.items()}
    parts = [layout.read(_read_verified(path, md5), path) for path, md5 in paths.items()]
    train = Split(np.concatenate([p.images for p in parts[:-1]]), np.concatenate([p.labels for p in parts[:-1]]))
    return ImageArrays(train, parts[-1])


def load_small_cifar10(folder: Path) -> ImageArrays:
    """Return the first 20,000 training images and all test images of CIFAR-10, reduced to 16 x 16 pixels."""
    full_size = load_cifar10(folder)
    train_rows = np.arange(min(_NUM_SMALL_TRAIN_IMAGES, len(full_size.train.labels)))
    return ImageArrays(_halve_resolution(full_size.train.take(train_rows)), _halve_resolution(full_size.test))


def _halve_resolution(split: Split) -> Split:
    """Return images of half the height and width. Each pixel is the mean of 2 x 2 pixels, and halves are rounded up."""
    n, channels, height, width = split.images.shape
    blocks = split.images.reshape(n, channels, height // 2, 2, width // 2, 2)
    return Split(((blocks.sum((3, 5), dtype=np.uint16) + 2) // 4).astype(np.uint8), split.labels)


def _find_files(folder: Path) -> tuple[Path, CifarLayout] | None:
    """Return the first folder that contains all files of a layout.

    If there is no such folder, return the first folder with any of the files. Reading it then raises an error that
    names the missing file.
    """
    candidates = [(location, layout) for layout in LAYOUTS for location in (folder, folder / layout.folder)]
    for all_or_any in (all, any):
        for location, layout in candidates:
            if all_or_any((location / name).exists() for name in layout.files):
                return location, layout
    return None


def _read_verified(path: Path, md5: str) -> bytes:
    """Return the content of an official file. If its MD5 is wrong, raise InputError before parsing the content."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    actual_md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual_md5 != md5:
        raise InputError(
            f"{path} is not the official file: its MD5 is {actual_md5} instead of {md5} ({len(content):,} bytes)"
        )
    return content


def read_binary(content: bytes, path: Path) -> Split:
    """Return the images and labels in a file of the binary version."""
    if not content or len(content) % _RECORD_BYTES:
        raise InputError(
            f"{path} has {len(content):,} bytes, which is not a multiple of the {_RECORD_BYTES} bytes of an image"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    return _make_split(rows[:, 1:], rows[:, 0], path)


def read_pickled(content: bytes, path: Path) -> Split:
    """Return the images and labels in a file of the Python version, a pickled dictionary of NumPy arrays and lists.

    No code in the file is run. The caller must check the MD5 of the file before, because forged arrays could still
    crash NumPy.
    """
    try:
        contents = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise InputError(f"{path} is not a pickle of arrays: {error}") from None
    if not isinstance(contents, dict) or not {b"data", b"labels"} <= set(contents):
        raise InputError(f"{path} does not contain the data and labels of CIFAR-10")
    return _make_split(np.asarray(contents[b"data"]), np.asarray(contents[b"labels"]), path)


def _make_split(images: np.ndarray, labels: np.ndarray, path: Path) -> Split:
    if labels.ndim != 1 or images.shape != (len(labels), _RECORD_BYTES - 1) or images.dtype != np.uint8:
        raise InputError(
            f"{path} contains images of shape {images.shape} and type {images.dtype}; expected rows of 3072 bytes"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0 or labels.max(initial=0) > 9:
        raise InputError(f"{path} contains labels outside 0 to 9")
    return Split(images.reshape(-1, *IMAGE_SHAPE).copy(), labels.astype(np.int64))


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that creates only NumPy arrays and plain Python values. Any other name raises UnpicklingError."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) == ("numpy.core.multiarray", "_reconstruct"):
            return _reconstruct
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        # with protocol 2, Python 3 stores bytes objects as a call of this function
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not needed for arrays")


def _reconstruct(kind: Any, shape: Any, typecode: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("it refers to an array of an unknown type")
    # the unpickler sets the state of the array next, which replaces its shape and type
    return np.ndarray((0,), np.uint8)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it refers to the encoding {encoding!r}")
    return text.encode("latin1")


LAYOUTS = [
    CifarLayout(
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
    CifarLayout(
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
