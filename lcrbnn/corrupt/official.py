"""Corrupted images from where they are: made from the test split, or a user's CIFAR-10-C or ImageNet-C folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.photos import Photos
from lcrbnn.corrupt.table import SEVERITIES, corrupt
from lcrbnn.data import DataSet, Split
from lcrbnn.data.decode import load_picture
from lcrbnn.data.listing import Broken
from lcrbnn.data.walk import PICTURES
from lcrbnn.errors import InputError

BATCH = 1000


class Shown(NamedTuple):
    """Some corrupted images, uint8 (n, 3, h, w), and their labels (n,)."""

    images: Tensor
    labels: Tensor


class Corrupted(Protocol):
    """Where corrupted images come from."""

    name: str  # for the record
    images: int  # of each corruption and severity

    def batches(self, corruption: str, severity: int) -> Iterator[Shown]:
        """The images of one corruption at one severity, on the device."""
        ...


class Regenerated:
    """Our own corruptions of the first images of the test split."""

    name = "regenerated"

    def __init__(self, test: Split, device: torch.device, photos: Photos | None) -> None:
        """Copy the images to the device."""
        self.clean = torch.from_numpy(test.images).to(device)
        self.labels = torch.from_numpy(test.labels).to(device)
        self.images = len(self.labels)
        self.photos = photos

    def batches(self, corruption: str, severity: int) -> Iterator[Shown]:
        """Made batch by batch."""
        for start in range(0, self.images, BATCH):
            rows = torch.arange(start, min(start + BATCH, self.images), device=self.clean.device)
            yield Shown(corrupt(self.clean[rows], corruption, severity, rows, self.photos), self.labels[rows])


class ArrayFolder:
    """CIFAR-10-C as published: NAME.npy of (5 n, h, w, 3) uint8, one severity after the other, and labels.npy."""

    name = "official arrays"

    def __init__(self, folder: Path, names: Sequence[str], test: Split, count: int, device: torch.device) -> None:
        """Look at every file before any is read: shapes, and labels against those of the test split."""
        self.folder, self.device, self.images = folder, device, count
        self.each = len(test.labels)
        self.labels = torch.from_numpy(test.labels[:count]).to(device)
        labels = _array(folder / "labels.npy")
        rows = len(SEVERITIES) * self.each
        if labels.shape != (rows,):
            raise InputError(f"{folder / 'labels.npy'} holds {labels.shape} labels; CIFAR-10-C has {rows:,}")
        if not np.array_equal(labels, np.tile(test.labels, len(SEVERITIES))):
            raise InputError(f"{folder / 'labels.npy'} does not hold the labels of the test images, once a severity")
        h, w = test.images.shape[2:]
        self.arrays = {name: _array(folder / f"{name}.npy") for name in names}
        for name, array in self.arrays.items():
            if array.shape != (rows, h, w, 3) or array.dtype != np.uint8:
                raise InputError(
                    f"{folder / name}.npy holds {array.dtype} {array.shape}; CIFAR-10-C has uint8 {(rows, h, w, 3)}"
                )

    def batches(self, corruption: str, severity: int) -> Iterator[Shown]:
        """Read from the mapped file."""
        first = (severity - 1) * self.each
        for start in range(0, self.images, BATCH):
            stop = min(start + BATCH, self.images)
            part = np.array(self.arrays[corruption][first + start : first + stop])
            images = torch.from_numpy(part).permute(0, 3, 1, 2).contiguous().to(self.device)
            yield Shown(images, self.labels[start:stop])


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: CIFAR-10-C is a file for each corruption, and labels.npy") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is no array that can be read: {error}") from None


class PictureFolder:
    """ImageNet-C or Tiny-ImageNet-C as published: NAME/SEVERITY/CLASS/PICTURE, perhaps a folder deeper.

    Classes are numbered in the order of their names. Of many pictures, `count` are taken evenly.
    """

    name = "official pictures"

    def __init__(
        self, folder: Path, names: Sequence[str], row: DataSet, count: int | None, device: torch.device
    ) -> None:
        """List the pictures; every corruption and severity must have as many, in the same classes."""
        self.row, self.device = row, device
        self.found: dict[tuple[str, int], list[tuple[Path, int]]] = {}
        for name in names:
            place = _corruption_folder(folder, name)
            for severity in SEVERITIES:
                self.found[name, severity] = self._list(place / str(severity))
        whole = {key: [label for _, label in listed] for key, listed in self.found.items()}
        first, labels = next(iter(whole.items()))
        for key, others in whole.items():
            if others != labels:
                raise InputError(
                    f"{folder}: {key[0]}/{key[1]} does not hold the same pictures a class as {first[0]}/{first[1]} "
                    f"({len(others):,} and {len(labels):,} in all)"
                )
        self.images = len(labels) if count is None else min(count, len(labels))
        self.taken = [i * len(labels) // self.images for i in range(self.images)]

    def _list(self, place: Path) -> list[tuple[Path, int]]:
        classes = sorted(p for p in place.iterdir() if p.is_dir()) if place.is_dir() else []
        if len(classes) != self.row.classes:
            raise InputError(f"{place} holds {len(classes)} folders of classes; {self.row.name} has {self.row.classes}")
        return [
            (path, label)
            for label, one in enumerate(classes)
            for path in sorted(p for p in one.iterdir() if p.suffix.lower() in PICTURES)
        ]

    def batches(self, corruption: str, severity: int) -> Iterator[Shown]:
        """Decoded picture by picture."""
        listed = self.found[corruption, severity]
        for start in range(0, self.images, BATCH):
            some = [listed[i] for i in self.taken[start : start + BATCH]]
            images = np.stack([self._read(path) for path, _ in some])
            labels = torch.tensor([label for _, label in some], device=self.device)
            yield Shown(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(self.device), labels)

    def _read(self, path: Path) -> np.ndarray:
        try:
            pixels = np.asarray(load_picture(path))
        except Broken as error:
            raise InputError(f"{path} is no picture that can be read: {error}") from None
        side = self.row.image
        if pixels.shape != (side, side, 3):
            raise InputError(f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels; {self.row.name} has {side}")
        return pixels


def _corruption_folder(folder: Path, name: str) -> Path:
    """Where the pictures of one corruption are: in the folder, or in one of its folders (blur, noise, ...)."""
    for place in (folder / name, *sorted(folder.glob(f"*/{name}"))):
        if place.is_dir():
            return place
    raise InputError(f"{folder} holds neither labels.npy nor a folder {name}: it is no CIFAR-10-C and no ImageNet-C")


def open_folder(
    folder: Path, names: Sequence[str], row: DataSet, test: Split, count: int | None, device: torch.device
) -> Corrupted:
    """The folder that a user has, of either kind."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if any(folder.glob("*.npy")):
        return ArrayFolder(folder, names, test, len(test.labels) if count is None else count, device)
    return PictureFolder(folder, names, row, count, device)
