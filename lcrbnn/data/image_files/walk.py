"""List the entries of train and val in an image folder, which can be in folders, zip archives and tar archives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lcrbnn.data.image_files.image_index import ARCHIVE_SUFFIXES, ImageLocation, list_archive
from lcrbnn.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = ("train", "val")
# Names of label files, which are read if the folder val has no class folders
LABEL_FILES = ("val_annotations.txt", "val_labels.txt", "LOC_val_solution.csv")
# Path from the top folder to train and val in Kaggle's download of ImageNet
KAGGLE_FOLDERS = ("ILSVRC", "Data", "CLS-LOC")

PathParts = tuple[
    str, ...
]  # tuples instead of Path objects, because creating millions of Path objects would take most of the time
# Dictionary from the parts of a path, which starts with "train" or "val", to the location of the image
Entries = dict[PathParts, ImageLocation]


def list_entries(root: Path) -> tuple[Entries, dict[PathParts, str]]:
    """Return all entries of train and val, and the folders that archives list, each with its name for messages.

    The entries are sorted by their path, so folders and archives with the same images give the same order.
    """
    entries: Entries = {}
    folders: dict[PathParts, str] = {}
    for parts, location in _iterate_entries(root):
        if isinstance(location, str):
            folders[parts] = location
            continue
        if parts in entries:
            raise InputError(f"{'/'.join(parts)} exists twice: {entries[parts].name} and {location.name}")
        entries[parts] = location
    return {parts: entries[parts] for parts in sorted(entries)}, folders


def _iterate_entries(root: Path) -> Iterator[tuple[PathParts, ImageLocation | str]]:
    if root.is_file():
        yield from _iterate_archive(root, None)
        return
    for name, path in {file.name: str(file) for file in reversed(find_label_files(root))}.items():
        yield ("val", name), ImageLocation(path, path)
    for split in SPLITS:
        if (root / split).is_dir():
            for parts, path in walk_folder(str(root / split), (split,)):
                yield parts, ImageLocation(path, path)
        for archive in find_archives(root, split):
            yield from _iterate_archive(archive, split)


def walk_folder(folder: str, parts: PathParts) -> Iterator[tuple[PathParts, str]]:
    """Yield the regular files below a folder. Links to folders are followed: data sets often consist of links."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from walk_folder(entry.path, (*parts, entry.name))
                elif entry.is_file() or _is_dangling_image_link(entry):
                    yield (*parts, entry.name), entry.path
    except OSError as error:
        raise InputError(f"{folder} cannot be listed: {error.strerror}") from None


def _is_dangling_image_link(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link, named like an image, to a missing file, which counts as a broken image.

    Raise InputError for other links to missing files. Pipes, sockets and devices are not images.
    """
    if not entry.is_symlink() or Path(entry.path).exists():
        return False
    if is_image_name((entry.name,)):
        return True
    raise InputError(f"{entry.path} is a link to {Path(entry.path).readlink()}, which does not exist")


def _iterate_archive(archive: Path, split: str | None) -> Iterator[tuple[PathParts, ImageLocation | str]]:
    """Yield the entries of an archive. Those whose path contains neither train nor val belong to `split`.

    `split` is the split in the name of the archive, or None if one archive holds the whole image folder.
    """
    entries = [(split_path(archive, name), name, location) for name, location in list_archive(archive)]
    visible = [entry for entry in entries if entry[0] and not is_hidden(entry[0])]
    split_depth = None
    if split is not None:
        images = [parts for parts, _, location in visible if location is not None and is_image_name(parts)]
        split_depth = _find_split_depth(archive, images)
    for parts, name, location in visible:
        entry_location = f"{archive}/{name}" if location is None else location
        depth = split_depth
        if split is None:
            depth = next((i for i, part in enumerate(parts[:-1]) if part in SPLITS), None)
        if depth is not None and len(parts) > depth + 1 and parts[depth] in SPLITS:
            yield parts[depth:], entry_location
        elif split is not None and depth is None:
            yield (split, *parts), entry_location
        elif location is not None and parts[-1] in LABEL_FILES:
            yield ("val", parts[-1]), entry_location


def split_path(archive: Path, name: str) -> PathParts:
    """Return the parts of the path of an archive entry. Raise InputError if it leads out of the archive."""
    if "\\" in name and "/" not in name:  # some Windows programs write backslashes, against the zip format
        name = name.replace("\\", "/")
    parts = tuple([part for part in name.split("/") if part not in ("", ".")])
    if ".." in parts:
        raise InputError(f"{archive}: {name!r} leads out of the archive")
    return parts


def _find_split_depth(archive: Path, image_parts: Sequence[PathParts]) -> int | None:
    """Return the depth at which all image paths have train or val below the same folders, or None if there is none.

    A class can also be called train. So InputError is raised if it is not clear whether train means a split or a class.
    """
    for depth in range(max((len(parts) - 1 for parts in image_parts), default=0)):
        names = {parts[depth] if len(parts) > depth + 1 else "" for parts in image_parts}
        if names <= set(SPLITS):
            return depth
        if len(names) > 1:
            _check_unambiguous(archive, depth, image_parts)
            break
    return None


def _check_unambiguous(archive: Path, depth: int, image_parts: Sequence[PathParts]) -> None:
    """Raise InputError if a folder called train or val has folders of images inside and images next to it.

    It could then be a split, whose siblings would be ignored, or a class.
    """
    folders_in_split = {p[depth : depth + 2]: p for p in image_parts if len(p) > depth + 2 and p[depth] in SPLITS}
    outside_split = next((p for p in image_parts if len(p) == depth + 1 or p[depth] not in SPLITS), None)
    if len(folders_in_split) > 1 and outside_split:
        inside_name = "/".join(min(folders_in_split.values()))
        split, outside_name = min(folders_in_split)[0], "/".join(outside_split)
        raise InputError(
            f"{archive} contains {inside_name!r} and, outside of {split}, {outside_name!r}; "
            "an archive called like a split must contain only that split, or all its images must be in train and val"
        )


def find_label_files(root: Path) -> list[Path]:
    """Return the label files next to val and, for Kaggle's ImageNet, in the top folder of the download."""
    absolute_root = root.absolute()
    folders = [root, absolute_root.parents[2]] if absolute_root.parts[-3:] == KAGGLE_FOLDERS else [root]
    return [folder / name for folder in folders for name in LABEL_FILES if (folder / name).is_file()]


def find_archives(folder: Path, split: str) -> list[Path]:
    """Return the archives of a split in a folder. Their names start with the split, or are the names of ImageNet."""
    prefixes = (split, f"ILSVRC2012_img_{split}.")
    return [p for p in list_folder(folder) if p.suffix.lower() in ARCHIVE_SUFFIXES and p.name.startswith(prefixes)]


def list_folder(folder: Path) -> list[Path]:
    """Return the sorted content of a folder, or an empty list if it is not a folder."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def is_hidden(parts: PathParts) -> bool:
    """Return whether a part of a path starts with a dot or with __MACOSX."""
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def is_image_name(parts: PathParts) -> bool:
    """Return whether the last part of a path is the name of an image."""
    return parts[-1].lower().endswith(IMAGE_SUFFIXES)
