"""The classes of a val without class folders, from a file that names each image and its class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import splitext

from lcrbnn.data.listing import Broken, Files, Member
from lcrbnn.data.walk import LABELS, Named, Parts, is_picture
from lcrbnn.errors import InputError

_BETWEEN, _BLANK = re.compile(r"[\s,]"), " \t,"  # what may stand between two words of a line of labels


def read_labels(where: Path, named: Named, classes: list[str]) -> dict[str, str]:
    """Class by name of image, from a file with both at the start of each line: Tiny-ImageNet's, Kaggle's, one's own.

    A tab ends a name, if there is one; otherwise it is the longest that an image of val has, which may hold blanks.
    """
    held = next((one for at, one in named.items() if at[0] == "val" and at[-1] in LABELS), None)
    if held is None:
        raise InputError(
            f"the images of val in {where} are in no class folder of train, and none of {', '.join(LABELS)} is there"
        )
    try:
        lines = Files().read(held).decode("utf-8-sig").splitlines()
    except (Broken, UnicodeDecodeError) as error:
        raise InputError(f"{held.name} is no list of labels: {error}") from None
    labels: dict[str, str] = {}
    known = set(classes)
    images = {key for at in named if at[0] == "val" and is_picture(at) for key in _keys(at)}
    for line in lines:
        found = _label(line.strip(), images, known)
        if found is None and _BETWEEN.split(line.strip(), maxsplit=1)[0] in ("", "ImageId"):
            continue  # an empty line, or Kaggle's first
        if found is None or found[0] in labels:
            why = (
                f"an earlier line names {found[0]!r}"
                if found
                else "no class of train follows a tab, blank or comma in it"
            )
            raise InputError(
                f"{held.name}: a line is the name of an image, once, and its class; got {line[:80]!r}: {why}"
            )
        labels[found[0]] = found[1]
    return labels


def label_of(at: Parts, member: Member, listed: dict[str, str], used: dict[str, str]) -> str:
    """The class that a file of labels has for an image, by one of its keys.

    What was `used` for another image is used up: it would be a label for one of them only.
    """
    for key in _keys(at):
        if key in listed:
            if key in used:
                raise InputError(
                    f"{member.name} cannot be used: the file of labels has one {key!r}, for {used[key]} too"
                )
            used[key] = member.name
            return listed[key]
    return ""


def _keys(at: Parts) -> tuple[str, ...]:
    """What a file of labels may call an image: its path in val, its name, each with its ending or without."""
    inside = "/".join(at[1:])
    return inside, splitext(inside)[0], at[-1], splitext(at[-1])[0]


def _label(line: str, images: set[str], known: set[str]) -> tuple[str, str] | None:
    """The name of an image and its class at the start of a line; None where no class follows any name."""
    for end in _ends(line, images):
        name = _first_class(line[end:].lstrip(_BLANK), known)
        if name is not None:
            return line[:end].rstrip(_BLANK), name
    return None


def _ends(line: str, images: set[str]) -> Iterator[int]:
    """Where the name of an image may end: at a tab, after the longest name that an image has, at the first blank."""
    ends = [found.start() for found in _BETWEEN.finditer(line)]
    yield from [line.index("\t")] if "\t" in line else []
    yield from (end for end in reversed(ends) if line[:end] in images)
    yield from ends[:1]


def _first_class(text: str, known: set[str]) -> str | None:
    """The longest name of a class that a text begins with; a space or comma, or nothing, comes after it."""
    ends = [*(found.start() for found in _BETWEEN.finditer(text)), len(text)]
    return next((text[:end] for end in reversed(ends) if text[:end] in known), None)
