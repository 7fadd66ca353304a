"""A tree of images: train/<class>/..., val/<class>/..., as folders or inside zip and tar files, or in both ways."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from lcrbnn.data.listing import ARCHIVES, Broken, Files, Listing, Member, members_of
from lcrbnn.data.split import VALIDATION_SEED
from lcrbnn.errors import InputError

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = ("train", "val")
LABELS = ("val_annotations.txt", "val_labels.txt", "LOC_val_solution.csv")  # of a val without class folders
KAGGLE = PurePosixPath("ILSVRC/Data/CLS-LOC")  # of ImageNet as Kaggle gives it: train and val

Named = dict[PurePosixPath, Member]  # by the path from train or val on


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
        inside = f", nor do {' or '.join(usual)} inside" if usual else ""
        raise InputError(
            f"{folder} has no images for training: neither a folder train nor train*.zip or train*.tar{inside}"
        )
    named = _named(where)
    train = {path: one for path, one in named.items() if path.parts[0] == "train" and _is_picture(path)}
    test = {path: one for path, one in named.items() if path.parts[0] == "val" and _is_picture(path)}
    classes = _classes(where, train)
    for split, found in zip(SPLITS, (train, test), strict=True):
        if not found:
            raise InputError(f"{where} has no images in {split}; looked for {', '.join(PICTURES)}")
    flat = all(path.parts[1] not in classes for path in test)
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


def _is_tree(place: Path) -> bool:
    if place.is_file():
        return place.suffix.lower() in ARCHIVES
    return (place / "train").is_dir() or len(_archives(place, "train")) > 0


def _archives(place: Path, split: str) -> list[Path]:
    """The archives of a split in a folder: their names begin with it, but for ImageNet's own."""
    starts = (split, f"ILSVRC2012_img_{split}.")
    held = sorted(place.iterdir()) if place.is_dir() else []
    return [p for p in held if p.suffix.lower() in ARCHIVES and p.name.startswith(starts)]


def _named(where: Path) -> Named:
    """Everything in train and val, by its path from there on; sorted, so that all forms of a tree are one order."""
    found: Named = {}
    for path, member in _members(where):
        if path in found:
            raise InputError(f"{path} is there twice: {found[path].name} and {member.name}")
        found[path] = member
    return dict(sorted(found.items(), key=lambda item: item[0].parts))


def _members(where: Path) -> Iterator[tuple[PurePosixPath, Member]]:
    if where.is_file():
        yield from _archived(where, None)
        return
    for name in LABELS:
        held = next((str(place / name) for place in _tops(where) if (place / name).is_file()), None)
        if held is not None:
            yield PurePosixPath("val", name), Member(held, held)
    for split in SPLITS:
        if (where / split).is_dir():
            for path in _walk(str(where / split)):
                yield PurePosixPath(split, os.path.relpath(path, where / split)), Member(path, path)
        for archive in _archives(where, split):
            yield from _archived(archive, split)


def _tops(where: Path) -> list[Path]:
    """Where a file of labels may lie: beside val; of Kaggle's ImageNet, at the top of what is downloaded."""
    whole = where.absolute()
    return [where, whole.parents[2]] if whole.parts[-3:] == KAGGLE.parts else [where]


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder, links to folders included: data sets are often put together of links."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from _walk(entry.path)
                else:
                    yield entry.path
    except OSError as error:
        raise InputError(f"{folder} cannot be looked into: {error.strerror}") from None


def _archived(archive: Path, split: str | None) -> Iterator[tuple[PurePosixPath, Member]]:
    """What an archive holds, from the first train or val in a name on; without one, its own name says which it is."""
    for name, member in members_of(archive):
        path = PurePosixPath(name)
        if any(part.startswith((".", "__MACOSX")) for part in path.parts):
            continue
        at = next((i for i, part in enumerate(path.parts[:-1]) if part in SPLITS), None)
        if at is not None:
            yield PurePosixPath(*path.parts[at:]), member
        elif split is not None:
            yield PurePosixPath(split, *path.parts), member
        elif path.name in LABELS:
            yield PurePosixPath("val", path.name), member


def _is_picture(path: PurePosixPath) -> bool:
    return path.suffix.lower() in PICTURES


def _classes(where: Path, train: Named) -> list[str]:
    for path, member in train.items():
        if len(path.parts) < 3:
            raise InputError(f"{member.name} lies in train itself: each class has a folder of its own there")
    classes = sorted({path.parts[1] for path in train})
    folder = where / "train"
    empty = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".") if folder.is_dir() else []
    for name in empty:
        if name not in classes:
            raise InputError(f"{folder / name} has no images: an empty class cannot be learned; remove it")
    if len(classes) == 1:
        raise InputError(f"{where} has one class in train, {classes[0]!r}: there is nothing to learn")
    return classes


def _listing(where: Path, images: Named, classes: list[str], listed: dict[str, str]) -> Listing:
    number = {name: i for i, name in enumerate(classes)}
    labels = []
    for path, member in images.items():
        name = listed.get(path.name, listed.get(path.stem, "")) if listed else path.parts[1]
        if name not in number:
            reason = f"its class {name!r} is not in train" if name else "the file of labels does not name it"
            raise InputError(f"{member.name} cannot be used: {reason}")
        labels.append(number[name])
    return Listing(images.values(), labels, str(where))


def _listed_labels(where: Path, named: Named, classes: list[str]) -> dict[str, str]:
    """Class by name of image, from a file with both at the start of each line: Tiny-ImageNet's, Kaggle's, one's own."""
    held = next((one for path, one in named.items() if path.parts[0] == "val" and path.name in LABELS), None)
    if held is None:
        raise InputError(
            f"the images of val in {where} are in no class folder of train, and none of {', '.join(LABELS)} is there"
        )
    try:
        lines = Files().read(held).decode("utf-8").splitlines()
    except (Broken, UnicodeDecodeError) as error:
        raise InputError(f"{held.name} is no list of labels: {error}") from None
    labels: dict[str, str] = {}
    for line in lines:
        words = re.split(r"[\s,]+", line.strip())
        if words == [""] or words[0] == "ImageId":
            continue
        if len(words) < 2 or words[1] not in classes or words[0] in labels:
            raise InputError(f"{held.name}: a line is the name of an image, once, and its class; got {line[:80]!r}")
        labels[words[0]] = words[1]
    return labels
