"""Index image folders. The images are train/CLASS/NAME and val/CLASS/NAME, in plain folders or in archives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from lcrbnn.data.image_files.image_index import ARCHIVE_SUFFIXES, PLAIN_FILE, ImageIndex, describe_non_file
from lcrbnn.data.image_files.label_file import find_label, read_labels
from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.data.image_files.walk import (
    IMAGE_SUFFIXES,
    SPLITS,
    Entries,
    PathParts,
    find_archives,
    find_label_files,
    is_image_name,
    list_entries,
    list_folder,
)
from lcrbnn.data.split import VALIDATION_SEED
from lcrbnn.errors import InputError

COMPRESSED_SUFFIXES = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")

FileStates = tuple[tuple[str, int, int, int], ...]  # (path, size in bytes, modification time, inode) of each file


@dataclass(frozen=True)
class ImageFolder:
    """Index of an image folder, with training images, test images (in val) and classes (the folders in train)."""

    train: ImageIndex
    test: ImageIndex
    classes: tuple[str, ...]
    picture_split: PictureSplit | None = None  # if the folder has no train and val; then `train` includes validation

    def digest(self) -> str:
        """Return a hash of the names and labels of the training images, and of the split, if it was computed."""
        digest = self.train.digest()
        if self.picture_split is None:
            return digest
        return hashlib.sha256(f"{digest} {self.picture_split.digest()}".encode()).hexdigest()[:16]

    def split_validation(self, num_validation_images: int) -> tuple[ImageIndex, ImageIndex]:
        """Return the training images without the validation images, and the validation images.

        The validation images are always the same, and at most a tenth of the training images. If the folder has a
        computed split, they are those of the split.
        """
        if self.picture_split is not None:
            validation_names = set(self.picture_split.valid)
            is_validation = np.array([self.train.relative_name(i) in validation_names for i in range(len(self.train))])
            return self.train.take(np.flatnonzero(~is_validation)), self.train.take(np.flatnonzero(is_validation))
        num_train_images = len(self.train)
        num_validation_images = count_validation_images(num_train_images, num_validation_images)
        order = np.random.default_rng(VALIDATION_SEED).permutation(num_train_images)
        validation_rows, train_rows = order[:num_validation_images], order[num_validation_images:]
        return self.train.take(np.sort(train_rows)), self.train.take(np.sort(validation_rows))


def count_validation_images(num_train_images: int, max_validation_images: int) -> int:
    """Return the number of validation images, at most `max_validation_images` and a tenth of the images."""
    if num_train_images < 10:
        raise InputError(
            f"{num_train_images} training images are too few for a validation split; "
            "at least 10 are needed, or --train-split train+valid"
        )
    return min(max_validation_images, num_train_images // 10)


def find_image_folder(folder: Path, *subfolders: str) -> ImageFolder:
    """Index the images in a folder or archive, or in the first of its `subfolders` that has a train folder or archive.

    Raise InputError if there is no such folder, or if its content is not a valid image folder. The index of archives is
    cached, because listing them is slow and all runs of a study ask for the same index.
    """
    candidates = [folder, *(folder / name for name in subfolders)]
    root = next((path for path in candidates if is_image_folder(path)), None)
    if root is None:
        if not folder.exists():
            raise InputError(f"{folder} does not exist; it must contain train and val, as folders, zip or tar files")
        if compressed_archive := _find_compressed_archive(folder, subfolders):
            raise InputError(
                f"{compressed_archive} is compressed as a whole and cannot be read without unpacking it; "
                "convert it to an uncompressed .tar file"
            )
        if not folder.is_dir():
            kind = describe_non_file(folder) or f"a file that is neither {' nor '.join(ARCHIVE_SUFFIXES)}"
            raise InputError(f"{folder} is {kind}; images are read from a folder, {' or '.join(ARCHIVE_SUFFIXES)} file")
        alternatives = f", also not in {' or '.join(subfolders)}" if subfolders else ""
        raise InputError(
            f"{folder} has no training images: there is no folder train, train*.zip or train*.tar{alternatives}"
        )
    file_states = read_archive_states(root)
    return _index_images(root) if file_states is None else _index_cached(root, file_states)


def read_archive_states(root: Path) -> FileStates | None:
    """Return data that changes when an archive changes, or None for folders, whose files can change unnoticed."""
    if not root.is_file() and any((root / split).is_dir() for split in SPLITS):
        return None
    archives = [root] if root.is_file() else [path for split in SPLITS for path in find_archives(root, split)]
    stats = ((str(path), path.stat()) for path in archives + find_label_files(root))
    return tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats)


@lru_cache(maxsize=1)
def _index_cached(root: Path, file_states: FileStates) -> ImageFolder:
    """Index archives. The argument `file_states` is part of the cache key, so changed archives are indexed again."""
    return _index_images(root)


def _index_images(root: Path) -> ImageFolder:
    entries, folders = list_entries(root)
    train, test = (
        {parts: location for parts, location in entries.items() if parts[0] == split and is_image_name(parts)}
        for split in SPLITS
    )
    classes = _find_classes(root, train, entries, folders)
    for split, images in zip(SPLITS, (train, test), strict=True):
        if not images:
            raise InputError(f"{root} has no images in {split}; supported are {', '.join(IMAGE_SUFFIXES)}")
    class_set = set(classes)
    # A folder in val that is not a class, such as "images" of Tiny-ImageNet, does not count as a class folder.
    needs_label_file = all(parts[1] not in class_set for parts in test)
    labels = read_labels(root, entries, classes) if needs_label_file else {}
    train_index, test_index = _label_images(root, train, classes, {}), _label_images(root, test, classes, labels)
    return ImageFolder(train_index, test_index, tuple(classes))


def find_folder_with_classes(
    find_folder: Callable[[Path], ImageFolder], class_names: Sequence[str], folder: Path
) -> ImageFolder:
    """Return the index of a folder. Raise InputError if its classes differ from those that the network learned."""
    image_folder = find_folder(folder)
    if differing := format_differing_names(class_names, image_folder.classes):
        raise InputError(f"{folder} has other classes than the network learned; only one of them has {differing}")
    return image_folder


def format_differing_names(names: Sequence[str], other_names: Sequence[str]) -> str:
    """Return up to four names that only one of two lists contains, as text, or "" for equal lists."""
    return ", ".join(sorted(set(names) ^ set(other_names))[:4])


def _find_compressed_archive(folder: Path, subfolders: Sequence[str]) -> Path | None:
    """Return the first compressed archive in the folders that are searched, or None."""
    candidates = (folder, *(folder / name for name in subfolders))
    files = [folder] if folder.is_file() else [file for candidate in candidates for file in list_folder(candidate)]
    return next((file for file in files if file.name.lower().endswith(COMPRESSED_SUFFIXES)), None)


def is_image_folder(path: Path) -> bool:
    """Return whether a path is an archive, or a folder with a folder or archive of training images."""
    if path.is_file():
        return path.suffix.lower() in ARCHIVE_SUFFIXES
    return (path / "train").is_dir() or len(find_archives(path, "train")) > 0


def _find_classes(root: Path, train: Entries, entries: Entries, folders: dict[PathParts, str]) -> list[str]:
    for parts, location in train.items():
        if len(parts) < 3:
            raise InputError(f"{location.name} is directly in train; each class must have its own folder in train")
    classes = sorted({parts[1] for parts in train})
    class_set = set(classes)
    class_paths = {p.name: str(p) for p in list_folder(root / "train") if p.is_dir() and p.name[0] != "."}
    for parts, location in entries.items():
        if parts[0] == "train" and len(parts) > 2 and parts[1] not in class_set:
            class_paths.setdefault(parts[1], location.name.rsplit("/", len(parts) - 2)[0])
    class_paths |= {parts[1]: path for parts, path in folders.items() if parts[0] == "train" and len(parts) == 2}
    for name, path in class_paths.items():
        if name not in class_set:
            raise InputError(f"{path} has no images; remove the empty class folder")
    if len(classes) == 1:
        raise InputError(f"{root} has only one class in train, {classes[0]!r}; at least two are needed")
    return classes


def _label_images(root: Path, images: Entries, classes: list[str], file_labels: dict[str, str]) -> ImageIndex:
    class_numbers = {class_name: i for i, class_name in enumerate(classes)}
    labels: list[int] = []
    used_labels: dict[str, str] = {}
    for parts, location in images.items():
        class_name = find_label(parts, location, file_labels, used_labels) if file_labels else parts[1]
        if class_name not in class_numbers:
            reason = f"its class {class_name!r} is not in train" if class_name else "the label file does not name it"
            raise InputError(f"{location.name} cannot be used: {reason}")
        labels.append(class_numbers[class_name])
    has_archives = any(location.storage != PLAIN_FILE for location in images.values())
    relative_names = ["/".join(parts) for parts in images] if has_archives else None
    return ImageIndex(images.values(), labels, str(root), relative_names)
