"""Your own pictures: train and val folders, or only class/picture, which `picture_split` divides."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from lcrbnn.data.image_files.image_folder import (
    FileStates,
    ImageFolder,
    find_image_folder,
    is_image_folder,
    read_archive_states,
)
from lcrbnn.data.image_files.image_index import ARCHIVE_SUFFIXES, PLAIN_FILE, ImageIndex, ImageLocation, list_archive
from lcrbnn.data.image_files.picture_split import PictureSplit, check_same_pictures, divide_pictures
from lcrbnn.data.image_files.walk import (
    SPLITS,
    Entries,
    PathParts,
    is_hidden,
    is_image_name,
    list_folder,
    split_path,
    walk_folder,
)
from lcrbnn.errors import InputError

# Folders of these names would be mistaken for classes. A folder called train or val selects the other layout.
SPLIT_FOLDER_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")


def find_pictures(folder: Path, split_seed: int = 0, picture_split: PictureSplit | None = None) -> ImageFolder:
    """Index the pictures in a folder or archive, with train and val, or with class folders only.

    Class folders are divided by the hashes of the names. With a `picture_split`, which a run has stored, the folder
    must have the same pictures.
    """
    if folder.is_file() and folder.suffix.lower() in ARCHIVE_SUFFIXES:
        image_folder = _index_archive(folder, read_archive_states(folder), split_seed, picture_split)
    elif folder.is_dir() and not is_image_folder(folder):
        image_folder = _index_class_folders(folder, split_seed, picture_split)
    else:
        image_folder = None
    if image_folder is not None:
        return image_folder
    image_folder = find_image_folder(folder)
    if picture_split is not None:
        raise InputError(
            f"{folder} has train and val, and the run was started with class folders that lcrbnn divided: restore "
            "them, or start a new run"
        )
    return image_folder


@lru_cache(maxsize=1)
def _index_archive(
    root: Path, file_states: FileStates | None, split_seed: int, picture_split: PictureSplit | None
) -> ImageFolder | None:
    """Index an archive. The argument `file_states` is part of the cache key, so a changed archive is indexed again."""
    return _index_class_folders(root, split_seed, picture_split)


def _index_class_folders(root: Path, split_seed: int, picture_split: PictureSplit | None) -> ImageFolder | None:
    """Return the index of class folders, or None if there are no images or if an archive contains train or val."""
    paths = dict(_iterate_entries(root))
    images = {parts: location for parts, location in paths.items() if location is not None and is_image_name(parts)}
    if root.is_file():
        folders = {part for parts, location in paths.items() for part in (parts if location is None else parts[:-1])}
        if not folders.isdisjoint(SPLITS):
            return None
        paths, images = _strip_common_folder(paths, images)
    if not images:
        return None
    classes = _find_classes(root, paths, images)
    names_by_class: dict[str, list[str]] = {class_name: [] for class_name in classes}
    for parts in images:
        names_by_class[parts[0]].append("/".join(parts))
    if picture_split is None:
        picture_split = divide_pictures(names_by_class, split_seed)
    else:
        check_same_pictures(picture_split, (name for names in names_by_class.values() for name in names), root)
    if not picture_split.test:
        raise InputError(f"{root} has no class with three pictures or more, so no picture is left for the test")
    test_names = set(picture_split.test)
    test = {parts: images[parts] for parts in sorted(images) if "/".join(parts) in test_names}
    train = {parts: images[parts] for parts in sorted(images) if parts not in test}
    return ImageFolder(_make_index(root, train, classes), _make_index(root, test, classes), classes, picture_split)


def _iterate_entries(root: Path) -> Iterator[tuple[PathParts, ImageLocation | None]]:
    """Yield the path of each visible entry below the folder or archive, and its location (None for a folder)."""
    if root.is_file():
        for name, location in list_archive(root):
            parts = split_path(root, name)
            if parts and not is_hidden(parts):
                yield parts, location
        return
    for path in list_folder(root):
        if path.is_dir() and not is_hidden((path.name,)):
            yield (path.name,), None
    for parts, name in walk_folder(str(root), ()):
        if not is_hidden(parts):
            yield parts, ImageLocation(name, name)


def _strip_common_folder(
    paths: dict[PathParts, ImageLocation | None], images: Entries
) -> tuple[dict[PathParts, ImageLocation | None], Entries]:
    """Remove a folder that contains all images, as in an archive of a folder: it cannot be a class."""
    while len({parts[0] for parts in images}) == 1 and all(len(parts) > 2 for parts in images):
        top = next(iter(images))[0]
        paths = {parts[1:]: location for parts, location in paths.items() if parts[0] == top and len(parts) > 1}
        images = {parts[1:]: location for parts, location in images.items()}
    return paths, images


def _find_classes(root: Path, paths: dict[PathParts, ImageLocation | None], images: Entries) -> tuple[str, ...]:
    for parts, location in images.items():
        if len(parts) == 1:
            raise InputError(
                f"{location.name} is directly in {root}; each class must have its own folder, or all classes must be "
                "in the folders train and val"
            )
    classes = sorted({parts[0] for parts in images})
    for name in classes:
        if name.lower() in SPLIT_FOLDER_NAMES:
            raise InputError(
                f"{root} contains the folder {name!r}, which is not called like a class: call the folder of the "
                "training images train and that of the test images val, or give the folder that contains the classes"
            )
    class_set = set(classes)
    for parts in paths:
        if parts[0] not in class_set and (paths[parts] is None or len(parts) > 1):
            raise InputError(f"{root / parts[0]} has no images; remove the empty class folder")
    if len(classes) == 1:
        raise InputError(f"{root} has only one class, {classes[0]!r}; at least two are needed")
    return tuple(classes)


def _make_index(root: Path, images: Entries, classes: tuple[str, ...]) -> ImageIndex:
    class_numbers = {name: i for i, name in enumerate(classes)}
    has_archives = any(location.storage != PLAIN_FILE for location in images.values())
    relative_names = ["/".join(parts) for parts in images] if has_archives else None
    return ImageIndex(images.values(), [class_numbers[parts[0]] for parts in images], str(root), relative_names)
