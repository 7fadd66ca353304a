"""A tree of images: train/<class>/..., val/<class>/..., as folders or inside zip and tar files, or in both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from lcrbnn.data.labels import label_of, read_labels
from lcrbnn.data.listing import ARCHIVES, FILE, Listing, other_kind
from lcrbnn.data.split import VALIDATION_SEED
from lcrbnn.data.walk import PICTURES, SPLITS, Named, Parts, archives, entries_of, is_picture, label_files, named_in
from lcrbnn.errors import InputError

SQUEEZED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")

State = tuple[tuple[str, int, int, int], ...]  # of each file: path, size, last change, inode


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


def _state(where: Path) -> State | None:
    """What tells whether archives are still the same; None of folders, in which a file can change unseen."""
    if not where.is_file() and any((where / split).is_dir() for split in SPLITS):
        return None
    held = [where] if where.is_file() else [one for split in SPLITS for one in archives(where, split)]
    found = ((str(one), one.stat()) for one in held + label_files(where))
    return tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found)


@lru_cache(maxsize=1)
def _remembered(where: Path, state: State) -> Tree:
    """The tree of archives in this state: every run of a study, and every reading after it, asks for it again."""
    return _index(where)


def _index(where: Path) -> Tree:
    named, folders = named_in(where)
    train, test = ({at: one for at, one in named.items() if at[0] == split and is_picture(at)} for split in SPLITS)
    classes = _classes(where, train, named, folders)
    for split, found in zip(SPLITS, (train, test), strict=True):
        if not found:
            raise InputError(f"{where} has no images in {split}; looked for {', '.join(PICTURES)}")
    known = set(classes)
    flat = all(at[1] not in known for at in test)
    labels = read_labels(where, named, classes) if flat else {}
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
    places = (folder, *(folder / name for name in usual))
    held = [folder] if folder.is_file() else [entry for place in places for entry in entries_of(place)]
    return next((one for one in held if one.name.lower().endswith(SQUEEZED)), None)


def _is_tree(place: Path) -> bool:
    if place.is_file():
        return place.suffix.lower() in ARCHIVES
    return (place / "train").is_dir() or len(archives(place, "train")) > 0


def _classes(where: Path, train: Named, everything: Named, folders: dict[Parts, str]) -> list[str]:
    for at, member in train.items():
        if len(at) < 3:
            raise InputError(f"{member.name} lies in train itself: each class has a folder of its own there")
    classes = sorted({at[1] for at in train})
    known = set(classes)
    named = {p.name: str(p) for p in entries_of(where / "train") if p.is_dir() and p.name[0] != "."}
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
        name = label_of(at, member, listed, used) if listed else at[1]
        if name not in number:
            reason = f"its class {name!r} is not in train" if name else "the file of labels does not name it"
            raise InputError(f"{member.name} cannot be used: {reason}")
        labels.append(number[name])
    packed = any(member.kind != FILE for member in images.values())
    return Listing(images.values(), labels, str(where), ["/".join(at) for at in images] if packed else None)
