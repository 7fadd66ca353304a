"""Read the classes of validation images without class folders from a label file, with one image per line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import splitext

from lcrbnn.data.image_files.image_index import BrokenImage, ImageLocation, ImageReader
from lcrbnn.data.image_files.walk import LABEL_FILES, Entries, PathParts, is_image_name
from lcrbnn.errors import InputError

# Characters between the file name and the class in a line
_SEPARATOR, _SEPARATOR_CHARACTERS = re.compile(r"[\s,]"), " \t,"


def read_labels(root: Path, entries: Entries, classes: list[str]) -> dict[str, str]:
    """Return the class of each image name in the label file, which has both at the start of each line.

    The label files of Tiny-ImageNet and of ImageNet from Kaggle have this form. The file name ends at the first tab.
    Without a tab it ends at a space or comma. If the name itself contains those, the longest prefix that matches an
    image is used.
    """
    label_file = next(
        (location for parts, location in entries.items() if parts[0] == "val" and parts[-1] in LABEL_FILES), None
    )
    if label_file is None:
        raise InputError(
            f"the images of val in {root} are in no class folder of train, and there is no label file "
            f"({', '.join(LABEL_FILES)})"
        )
    try:
        lines = ImageReader().read(label_file).decode("utf-8-sig").splitlines()
    except (BrokenImage, UnicodeDecodeError) as error:
        raise InputError(f"{label_file.name} is not a label file: {error}") from None
    labels: dict[str, str] = {}
    class_set = set(classes)
    image_keys = {key for parts in entries if parts[0] == "val" and is_image_name(parts) for key in _list_keys(parts)}
    for line in lines:
        parsed = _parse_line(line.strip(), image_keys, class_set)
        if parsed is None and _SEPARATOR.split(line.strip(), maxsplit=1)[0] in ("", "ImageId"):
            continue  # skip an empty line, or the header line of Kaggle's file
        if parsed is None or parsed[0] in labels:
            reason = (
                f"an earlier line names {parsed[0]!r}"
                if parsed
                else "no class of train follows a tab, space or comma in it"
            )
            raise InputError(
                f"{label_file.name}: a line must be the name of an image and its class, once per image; "
                f"got {line[:80]!r}: {reason}"
            )
        labels[parsed[0]] = parsed[1]
    return labels


def find_label(parts: PathParts, location: ImageLocation, labels: dict[str, str], used_labels: dict[str, str]) -> str:
    """Return the class of an image in the label file, or an empty text if the file does not name the image.

    Raise InputError if the label was already used for another image, because it is not clear which of them it means.
    """
    for key in _list_keys(parts):
        if key in labels:
            if key in used_labels:
                raise InputError(
                    f"{location.name} cannot be used: the label file has only one {key!r}, "
                    f"which also fits {used_labels[key]}"
                )
            used_labels[key] = location.name
            return labels[key]
    return ""


def _list_keys(parts: PathParts) -> tuple[str, ...]:
    """Return the names of an image in a label file, as path in val or file name, with or without extension."""
    path_in_val = "/".join(parts[1:])
    return path_in_val, splitext(path_in_val)[0], parts[-1], splitext(parts[-1])[0]


def _parse_line(line: str, image_keys: set[str], classes: set[str]) -> tuple[str, str] | None:
    """Return the image name and the class at the start of a line, or None if no class follows a name."""
    for end in _find_name_ends(line, image_keys):
        class_name = _find_leading_class(line[end:].lstrip(_SEPARATOR_CHARACTERS), classes)
        if class_name is not None:
            return line[:end].rstrip(_SEPARATOR_CHARACTERS), class_name
    return None


def _find_name_ends(line: str, image_keys: set[str]) -> Iterator[int]:
    """Yield possible ends of the image name, first a tab, then the longest known names, then the first separator."""
    ends = [match.start() for match in _SEPARATOR.finditer(line)]
    yield from [line.index("\t")] if "\t" in line else []
    yield from (end for end in reversed(ends) if line[:end] in image_keys)
    yield from ends[:1]


def _find_leading_class(text: str, classes: set[str]) -> str | None:
    """Return the longest class name at the start of a text that ends at a separator or at the end, or None."""
    ends = [*(match.start() for match in _SEPARATOR.finditer(text)), len(text)]
    return next((text[:end] for end in reversed(ends) if text[:end] in classes), None)
