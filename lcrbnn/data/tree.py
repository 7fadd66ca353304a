"""A tree of images: train/<class>/..., val/<class>/..., as folders or inside zip and tar files, or in both ways."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from posixpath import splitext

import numpy as np

from lcrbnn.data.listing import ARCHIVES, FILE, Broken, Files, Listing, Member, members_of, other_kind
from lcrbnn.data.split import VALIDATION_SEED
from lcrbnn.errors import InputError

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = ("train", "val")
SQUEEZED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")
LABELS = ("val_annotations.txt", "val_labels.txt", "LOC_val_solution.csv")  # of a val without class folders
KAGGLE = ("ILSVRC", "Data", "CLS-LOC")  # of ImageNet as Kaggle gives it: train and val

_BETWEEN, _BLANK = re.compile(r"[\s,]"), " \t,"  # what may stand between two words of a line of labels

Parts = tuple[str, ...]  # of a path; there are millions of them, and Path objects would take most of the time
Named = dict[Parts, Member]  # by the path from train or val on


@dataclass(frozen=True)
class Tree:
    """Images for training, those of val, which are the test images, and the classes: the names of train's folders."""

    train: Listing
    test: Listing
    classes: tuple[str, ...]

    def divided(self, held_out: int) -> tuple[Listing, Listing]:
        """The training images without, and only, those for validation: always the same, a tenth at most."""
        count = len(self.train)
        held_out = held_back(count, held_out)
        order = np.random.default_rng(VALIDATION_SEED).permutation(count)
        return self.train.take(np.sort(order[held_out:])), self.train.take(np.sort(order[:held_out]))


def held_back(count: int, held_out: int) -> int:
    """How many of so many training images are for validation: as many as are wanted, a tenth at most."""
    if count < 10:
        raise InputError(f"{count} training images are too few to hold any out for validation: say --images all")
    return min(held_out, count // 10)


def find_tree(folder: Path, *usual: str) -> Tree:
    """Index the tree in a folder, in an archive that is named instead of one, or in one of the usual folders inside."""
    places = [folder, *(folder / name for name in usual)]
    where = next((place for place in places if _is_tree(place)), None)
    if where is None:
        if not folder.exists():
            raise InputError(f"{folder} is not there; it would hold train and val, as folders, zip or tar files")
        if squeezed := _squeezed(folder, usual):
            raise InputError(
                f"{squeezed} is compressed as a whole, and cannot be read without unpacking; make a .tar of it"
            )
        if not folder.is_dir():
            kind = other_kind(folder) or f"a file that is neither {' nor '.join(ARCHIVES)}"
            raise InputError(f"{folder} is {kind}: images come from a folder, a {' or a '.join(ARCHIVES)} file")
        inside = f", nor do {' or '.join(usual)} inside" if usual else ""
        raise InputError(
            f"{folder} has no images for training: neither a folder train nor train*.zip or train*.tar{inside}"
        )
    state = _state(where)
    return _index(where) if state is None else _remembered(where, state)


State = tuple[tuple[str, int, int, int], ...]  # of each file: path, size, last change, inode


def _state(where: Path) -> State | None:
    """What tells whether archives are still the same; None of folders, in which a file can change unseen."""
    if not where.is_file() and any((where / split).is_dir() for split in SPLITS):
        return None
    held = [where] if where.is_file() else [one for split in SPLITS for one in _archives(where, split)]
    held += [top / name for top in _tops(where) for name in LABELS if (top / name).is_file()]
    found = ((str(one), one.stat()) for one in held)
    return tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found)


@lru_cache(maxsize=1)
def _remembered(where: Path, state: State) -> Tree:
    """The tree of archives in this state: every run of a study, and every reading after it, asks for it again."""
    return _index(where)


def _index(where: Path) -> Tree:
    named, folders = _named(where)
    train, test = ({at: one for at, one in named.items() if at[0] == split and _is_picture(at)} for split in SPLITS)
    classes = _classes(where, train, named, folders)
    for split, found in zip(SPLITS, (train, test), strict=True):
        if not found:
            raise InputError(f"{where} has no images in {split}; looked for {', '.join(PICTURES)}")
    known = set(classes)
    flat = all(at[1] not in known for at in test)
    labels = _listed_labels(where, named, classes) if flat else {}
    return Tree(_listing(where, train, classes, {}), _listing(where, test, classes, labels), tuple(classes))


def tree_of(find: Callable[[Path], Tree], names: Sequence[str], folder: Path) -> Tree:
    """The tree in a folder, which must have classes of these names: a network answers with their numbers."""
    tree = find(folder)
    if odd := other_names(names, tree.classes):
        raise InputError(f"{folder} has other classes than the network learned: {odd} in one of them only")
    return tree


def other_names(some: Sequence[str], others: Sequence[str]) -> str:
    """A few names that only one of two lists of classes has; none if they are alike."""
    return ", ".join(sorted(set(some) ^ set(others))[:4])


def _squeezed(folder: Path, usual: Sequence[str]) -> Path | None:
    """A compressed archive where a tree was looked for."""
    held = [folder] if folder.is_file() else [p for top in (folder, *(folder / n for n in usual)) for p in _held(top)]
    return next((one for one in held if one.name.lower().endswith(SQUEEZED)), None)


def _held(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_tree(place: Path) -> bool:
    if place.is_file():
        return place.suffix.lower() in ARCHIVES
    return (place / "train").is_dir() or len(_archives(place, "train")) > 0


def _archives(place: Path, split: str) -> list[Path]:
    """The archives of a split in a folder: their names begin with it, but for ImageNet's own."""
    starts = (split, f"ILSVRC2012_img_{split}.")
    return [p for p in _held(place) if p.suffix.lower() in ARCHIVES and p.name.startswith(starts)]


def _named(where: Path) -> tuple[Named, dict[Parts, str]]:
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
    for name in LABELS:
        held = next((str(place / name) for place in _tops(where) if (place / name).is_file()), None)
        if held is not None:
            yield ("val", name), Member(held, held)
    for split in SPLITS:
        if (where / split).is_dir():
            for at, path in _walk(str(where / split), (split,)):
                yield at, Member(path, path)
        for archive in _archives(where, split):
            yield from _archived(archive, split)


def _tops(where: Path) -> list[Path]:
    """Where a file of labels may lie: beside val; of Kaggle's ImageNet, at the top of what is downloaded."""
    whole = where.absolute()
    return [where, whole.parents[2]] if whole.parts[-3:] == KAGGLE else [where]


def _walk(folder: str, at: Parts) -> Iterator[tuple[Parts, str]]:
    """The files below a folder, links to folders included: data sets are often put together of links."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from _walk(entry.path, (*at, entry.name))
                elif entry.is_symlink() and not _is_picture((entry.name,)) and not Path(entry.path).exists():
                    raise InputError(f"{entry.path} is a link to {Path(entry.path).readlink()}, which is not there")
                else:
                    yield (*at, entry.name), entry.path
    except OSError as error:
        raise InputError(f"{folder} cannot be looked into: {error.strerror}") from None


def _archived(archive: Path, split: str | None) -> Iterator[tuple[Parts, Member | str]]:
    """What an archive holds, from train or val on; where its names have neither, its own name says which it is."""
    entries = [(_parts(archive, name), name, member) for name, member in members_of(archive)]
    shown = [one for one in entries if one[0] and not _is_hidden(one[0])]
    top = None
    if split is not None:
        top = _top(archive, [parts for parts, _, member in shown if member is not None and _is_picture(parts)])
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


def _is_hidden(parts: Parts) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def _is_picture(parts: Parts) -> bool:
    return parts[-1].lower().endswith(PICTURES)


def _classes(where: Path, train: Named, everything: Named, folders: dict[Parts, str]) -> list[str]:
    for at, member in train.items():
        if len(at) < 3:
            raise InputError(f"{member.name} lies in train itself: each class has a folder of its own there")
    classes = sorted({at[1] for at in train})
    known = set(classes)
    named = {p.name: str(p) for p in _held(where / "train") if p.is_dir() and p.name[0] != "."}
    for at, member in everything.items():
        if at[0] == "train" and len(at) > 2 and at[1] not in known:
            named.setdefault(at[1], member.name.rsplit("/", len(at) - 2)[0])
    named |= {at[1]: place for at, place in folders.items() if at[0] == "train" and len(at) == 2}
    for name, place in named.items():
        if name not in known:
            raise InputError(f"{place} has no images: an empty class cannot be learned; remove it")
    if len(classes) == 1:
        raise InputError(f"{where} has one class in train, {classes[0]!r}: there is nothing to learn")
    return classes


def _listing(where: Path, images: Named, classes: list[str], listed: dict[str, str]) -> Listing:
    number = {name: i for i, name in enumerate(classes)}
    labels: list[int] = []
    used: dict[str, str] = {}
    for at, member in images.items():
        name = _listed(at, member, listed, used) if listed else at[1]
        if name not in number:
            reason = f"its class {name!r} is not in train" if name else "the file of labels does not name it"
            raise InputError(f"{member.name} cannot be used: {reason}")
        labels.append(number[name])
    packed = any(member.kind != FILE for member in images.values())
    return Listing(images.values(), labels, str(where), ["/".join(at) for at in images] if packed else None)


def _keys(at: Parts) -> tuple[str, ...]:
    """What a file of labels may call an image: its path in val, its name, each with its ending or without."""
    inside = "/".join(at[1:])
    return inside, splitext(inside)[0], at[-1], splitext(at[-1])[0]


def _listed(at: Parts, member: Member, listed: dict[str, str], used: dict[str, str]) -> str:
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


def _listed_labels(where: Path, named: Named, classes: list[str]) -> dict[str, str]:
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
    images = {key for at in named if at[0] == "val" and _is_picture(at) for key in _keys(at)}
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
