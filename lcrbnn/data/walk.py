"""All that is in train and val of a tree of images: in folders, inside zip and tar files, or in both ways."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lcrbnn.data.listing import ARCHIVES, Member, members_of
from lcrbnn.errors import InputError

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = ("train", "val")
LABELS = ("val_annotations.txt", "val_labels.txt", "LOC_val_solution.csv")  # of a val without class folders
KAGGLE = ("ILSVRC", "Data", "CLS-LOC")  # of ImageNet as Kaggle gives it: train and val

Parts = tuple[str, ...]  # of a path; there are millions of them, and Path objects would take most of the time
Named = dict[Parts, Member]  # by the path from train or val on


def named_in(where: Path) -> tuple[Named, dict[Parts, str]]:
    """Everything in train and val, by its path from there on; sorted, so that all forms of a tree are one order.

    Folders that archives name are told apart, each with its name for messages.
    """
    found: Named = {}
    folders: dict[Parts, str] = {}
    for at, member in _members(where):
        if isinstance(member, str):
            folders[at] = member
            continue
        if at in found:
            raise InputError(f"{'/'.join(at)} is there twice: {found[at].name} and {member.name}")
        found[at] = member
    return {at: found[at] for at in sorted(found)}, folders


def _members(where: Path) -> Iterator[tuple[Parts, Member | str]]:
    if where.is_file():
        yield from _archived(where, None)
        return
    for name, path in {file.name: str(file) for file in reversed(label_files(where))}.items():
        yield ("val", name), Member(path, path)
    for split in SPLITS:
        if (where / split).is_dir():
            for at, path in _walk(str(where / split), (split,)):
                yield at, Member(path, path)
        for archive in archives(where, split):
            yield from _archived(archive, split)


def _walk(folder: str, at: Parts) -> Iterator[tuple[Parts, str]]:
    """The regular files below a folder, links to folders included: data sets are often put together of links."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from _walk(entry.path, (*at, entry.name))
                elif entry.is_file() or _is_lost_picture(entry):
                    yield (*at, entry.name), entry.path
    except OSError as error:
        raise InputError(f"{folder} cannot be looked into: {error.strerror}") from None


def _is_lost_picture(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a link with the name of a picture to nothing: a broken picture. Raise for other such links.

    Pipes, sockets and devices are no pictures.
    """
    if not entry.is_symlink() or Path(entry.path).exists():
        return False
    if is_picture((entry.name,)):
        return True
    raise InputError(f"{entry.path} is a link to {Path(entry.path).readlink()}, which is not there")


def _archived(archive: Path, split: str | None) -> Iterator[tuple[Parts, Member | str]]:
    """What an archive holds, from train or val on; where its names have neither, its own name says which it is."""
    entries = [(_parts(archive, name), name, member) for name, member in members_of(archive)]
    shown = [one for one in entries if one[0] and not _is_hidden(one[0])]
    top = None
    if split is not None:
        top = _top(archive, [parts for parts, _, member in shown if member is not None and is_picture(parts)])
    for parts, name, member in shown:
        held = f"{archive}/{name}" if member is None else member
        at = top if split is not None else next((i for i, part in enumerate(parts[:-1]) if part in SPLITS), None)
        if at is not None and len(parts) > at + 1 and parts[at] in SPLITS:
            yield parts[at:], held
        elif split is not None and at is None:
            yield (split, *parts), held
        elif member is not None and parts[-1] in LABELS:
            yield ("val", parts[-1]), held


def _parts(archive: Path, name: str) -> Parts:
    """The parts of a name in an archive, from its top on."""
    if "\\" in name and "/" not in name:  # made on Windows by a program that did not know better
        name = name.replace("\\", "/")
    parts = tuple([part for part in name.split("/") if part not in ("", ".")])
    if ".." in parts:
        raise InputError(f"{archive}: {name!r} leads out of the archive")
    return parts


def _top(archive: Path, pictures: Sequence[Parts]) -> int | None:
    """How deep train and val lie in names of pictures that all have one of them there, and the same before it.

    A class may be called train too, so where some have one and others lie beside it, nobody knows what is meant.
    """
    for depth in range(max((len(parts) - 1 for parts in pictures), default=0)):
        here = {parts[depth] if len(parts) > depth + 1 else "" for parts in pictures}
        if here <= set(SPLITS):
            return depth
        if len(here) > 1:
            _check_one_meaning(archive, depth, pictures)
            break
    return None


def _check_one_meaning(archive: Path, depth: int, pictures: Sequence[Parts]) -> None:
    """Raise if folders lie in one that is called train or val, and other pictures beside it: a class, or the split?"""
    within = {p[depth : depth + 2]: p for p in pictures if len(p) > depth + 2 and p[depth] in SPLITS}
    beside = next((p for p in pictures if len(p) == depth + 1 or p[depth] not in SPLITS), None)
    if len(within) > 1 and beside:
        one = "/".join(min(within.values()))
        raise InputError(
            f"{archive} holds {one!r} and, beside {min(within)[0]}, {'/'.join(beside)!r}: an archive that is called "
            "after a split is that split, or has all its images in train and val"
        )


def label_files(where: Path) -> list[Path]:
    """The files of labels beside val and, of Kaggle's ImageNet, at the top of what is downloaded: nearest first."""
    whole = where.absolute()
    tops = [where, whole.parents[2]] if whole.parts[-3:] == KAGGLE else [where]
    return [top / name for top in tops for name in LABELS if (top / name).is_file()]


def archives(place: Path, split: str) -> list[Path]:
    """The archives of a split in a folder: their names begin with it, but for ImageNet's own."""
    starts = (split, f"ILSVRC2012_img_{split}.")
    return [p for p in entries_of(place) if p.suffix.lower() in ARCHIVES and p.name.startswith(starts)]


def entries_of(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing where there is none."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_hidden(parts: Parts) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def is_picture(parts: Parts) -> bool:
    """Whether the name at the end of a path is that of a picture."""
    return parts[-1].lower().endswith(PICTURES)
