"""Sources of corrupted images, which are generated from the test split, or read from CIFAR-10-C or ImageNet-C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.datasets import DataSet
from lcrbnn.data.image_files.decode import load_image
from lcrbnn.data.image_files.image_index import BrokenImage
from lcrbnn.data.image_files.walk import IMAGE_SUFFIXES
from lcrbnn.data.split import Split
from lcrbnn.errors import InputError
from lcrbnn.evaluation.corruptions.corruption_registry import SEVERITIES, apply_corruption
from lcrbnn.evaluation.corruptions.frost_photos import FrostPhotos

BATCH_SIZE = 1000


class CorruptedBatch(NamedTuple):
    """Corrupted images, uint8 (n, 3, h, w), and their labels (n,)."""

    images: Tensor
    labels: Tensor


class CorruptedSet(Protocol):
    """Base class of a source of corrupted images."""

    name: str  # text in the record that describes the source
    num_images: int  # number of images per corruption and severity

    def iter_batches(self, corruption: str, severity: int) -> Iterator[CorruptedBatch]:
        """Yield batches of the images with one corruption at one severity, on the device."""
        ...


class GeneratedSet:
    """Images of the test split, which this package corrupts."""

    name = "regenerated"

    def __init__(self, test: Split, device: torch.device, photos: FrostPhotos | None) -> None:
        """Copy the images to the device."""
        self.clean_images = torch.from_numpy(test.images).to(device)
        self.labels = torch.from_numpy(test.labels).to(device)
        self.num_images = len(self.labels)
        self.photos = photos

    def iter_batches(self, corruption: str, severity: int) -> Iterator[CorruptedBatch]:
        """Yield the images, corrupted batch by batch."""
        for start in range(0, self.num_images, BATCH_SIZE):
            rows = torch.arange(start, min(start + BATCH_SIZE, self.num_images), device=self.clean_images.device)
            yield CorruptedBatch(
                apply_corruption(self.clean_images[rows], corruption, severity, rows, self.photos), self.labels[rows]
            )


class CifarCFolder:
    """CIFAR-10-C as published, with labels.npy and one file NAME.npy per corruption.

    A file has the images of all severities in order, uint8 (5 n, h, w, 3).
    """

    name = "official arrays"

    def __init__(
        self, folder: Path, corruptions: Sequence[str], test: Split, num_images: int, device: torch.device
    ) -> None:
        """Check the shapes of all files and compare their labels with those of the test split. No image is read yet."""
        self.folder, self.device, self.num_images = folder, device, num_images
        self.images_per_severity = len(test.labels)
        self.labels = torch.from_numpy(test.labels[:num_images]).to(device)
        labels = _map_array(folder / "labels.npy")
        num_rows = len(SEVERITIES) * self.images_per_severity
        if labels.shape != (num_rows,):
            raise InputError(
                f"{folder / 'labels.npy'} has labels of shape {labels.shape}; CIFAR-10-C has {num_rows:,} labels"
            )
        if not np.array_equal(labels, np.tile(test.labels, len(SEVERITIES))):
            raise InputError(f"{folder / 'labels.npy'} must repeat the labels of the test images once per severity")
        h, w = test.images.shape[2:]
        self.arrays = {name: _map_array(folder / f"{name}.npy") for name in corruptions}
        for name, array in self.arrays.items():
            if array.shape != (num_rows, h, w, 3) or array.dtype != np.uint8:
                raise InputError(
                    f"{folder / name}.npy contains {array.dtype} {array.shape}; "
                    f"CIFAR-10-C has uint8 {(num_rows, h, w, 3)}"
                )

    def iter_batches(self, corruption: str, severity: int) -> Iterator[CorruptedBatch]:
        """Yield images of the memory-mapped file."""
        first = (severity - 1) * self.images_per_severity
        for start in range(0, self.num_images, BATCH_SIZE):
            stop = min(start + BATCH_SIZE, self.num_images)
            pixels = np.array(self.arrays[corruption][first + start : first + stop])
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.device)
            yield CorruptedBatch(images, self.labels[start:stop])


def _map_array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; CIFAR-10-C has labels.npy and one file per corruption") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a readable array: {error}") from None


class ImageNetCFolder:
    """ImageNet-C or Tiny-ImageNet-C as published, in folders CORRUPTION/SEVERITY/CLASS or FAMILY/CORRUPTION/...

    Classes are numbered in the alphabetical order of their names. With `max_images`, only that many evenly spaced
    images are used.
    """

    name = "official pictures"

    def __init__(
        self, folder: Path, corruptions: Sequence[str], dataset: DataSet, max_images: int | None, device: torch.device
    ) -> None:
        """List the image files. Every corruption and severity must have the same number of images per class."""
        self.dataset, self.device = dataset, device
        self.labeled_files: dict[tuple[str, int], list[tuple[Path, int]]] = {}
        for name in corruptions:
            corruption_folder = _find_corruption_folder(folder, name)
            for severity in SEVERITIES:
                self.labeled_files[name, severity] = self._list_images(corruption_folder / str(severity))
        labels_by_key = {key: [label for _, label in files] for key, files in self.labeled_files.items()}
        first_key, labels = next(iter(labels_by_key.items()))
        for key, other_labels in labels_by_key.items():
            if other_labels != labels:
                raise InputError(
                    f"{folder}: {key[0]}/{key[1]} and {first_key[0]}/{first_key[1]} differ "
                    f"in the number of images per class ({len(other_labels):,} and {len(labels):,} images in total)"
                )
        self.num_images = len(labels) if max_images is None else min(max_images, len(labels))
        self.indices = [i * len(labels) // self.num_images for i in range(self.num_images)]

    def _list_images(self, severity_folder: Path) -> list[tuple[Path, int]]:
        class_folders = sorted(p for p in severity_folder.iterdir() if p.is_dir()) if severity_folder.is_dir() else []
        if len(class_folders) != self.dataset.num_classes:
            raise InputError(
                f"{severity_folder} has {len(class_folders)} class folders; "
                f"{self.dataset.name} has {self.dataset.num_classes}"
            )
        return [
            (path, label)
            for label, class_folder in enumerate(class_folders)
            for path in sorted(p for p in class_folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        ]

    def iter_batches(self, corruption: str, severity: int) -> Iterator[CorruptedBatch]:
        """Yield batches of images. They are decoded one by one."""
        files = self.labeled_files[corruption, severity]
        for start in range(0, self.num_images, BATCH_SIZE):
            batch = [files[i] for i in self.indices[start : start + BATCH_SIZE]]
            images = np.stack([self._read_pixels(path) for path, _ in batch])
            labels = torch.tensor([label for _, label in batch], device=self.device)
            yield CorruptedBatch(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(self.device), labels)

    def _read_pixels(self, path: Path) -> np.ndarray:
        try:
            pixels = np.asarray(load_image(path))
        except BrokenImage as error:
            raise InputError(f"{path} is not a readable image: {error}") from None
        side = self.dataset.image_size
        if pixels.shape != (side, side, 3):
            raise InputError(f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels; {self.dataset.name} has {side}")
        return pixels


def _find_corruption_folder(folder: Path, corruption: str) -> Path:
    """Return the folder of one corruption, in the main folder or in a subfolder such as blur or noise."""
    for candidate in (folder / corruption, *sorted(folder.glob(f"*/{corruption}"))):
        if candidate.is_dir():
            return candidate
    raise InputError(f"{folder} is neither CIFAR-10-C nor ImageNet-C: it has no labels.npy and no folder {corruption}")


def open_corrupted_folder(
    folder: Path,
    corruptions: Sequence[str],
    dataset: DataSet,
    test: Split,
    max_images: int | None,
    device: torch.device,
) -> CorruptedSet:
    """Return the corrupted images of a folder: CIFAR-10-C if it contains .npy files, else ImageNet-C."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if any(folder.glob("*.npy")):
        return CifarCFolder(folder, corruptions, test, len(test.labels) if max_images is None else max_images, device)
    return ImageNetCFolder(folder, corruptions, dataset, max_images, device)
