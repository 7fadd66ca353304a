"""The split of pictures without train and val folders: 80 % training, 10 % validation, 10 % test, per class."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError

PICTURES_PER_TEST_PICTURE = 10  # of a class: a tenth is for validation and another tenth for the test
MIN_PICTURES_FOR_TEST = 3  # a class with fewer pictures has no test picture
MAX_LISTED_PICTURES = 3  # in an error message


class PictureSplit(NamedTuple):
    """The names of the pictures of each split, relative to their folder, sorted. A run stores them."""

    seed: int
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]

    def digest(self) -> str:
        """Return a hash of all names and of the split that each belongs to."""
        return hashlib.sha256(json.dumps(self[1:]).encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, content: Mapping[str, Any], path: Path) -> PictureSplit:
        """Return the split in the JSON content of a file. Raise InputError if the content is not a split."""
        names = [content.get(name) for name in cls._fields[1:]]
        is_valid = isinstance(content.get("seed"), int) and all(
            isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names
        )
        if not is_valid:
            raise InputError(f"{path} cannot be read: it contains no split of pictures (seed, train, valid, test)")
        train, valid, test = (tuple(part or ()) for part in names)
        return cls(content["seed"], train, valid, test)


def divide_pictures(names_by_class: Mapping[str, Sequence[str]], seed: int) -> PictureSplit:
    """Divide the pictures of each class by the hashes of the seed and of their names.

    The result does not depend on the order of the names. A tenth of each class, rounded to the nearest number, is for
    validation, and as many pictures are for the test: at least one of each in a class with three pictures or more. A
    class with two pictures has one for validation and none for the test.
    """
    train: list[str] = []
    valid: list[str] = []
    test: list[str] = []
    for names in names_by_class.values():
        shuffled_names = sorted(names, key=lambda name: (_hash_name(name, seed), name))
        num_valid, num_test = count_held_out(len(names))
        test += shuffled_names[:num_test]
        valid += shuffled_names[num_test : num_test + num_valid]
        train += shuffled_names[num_test + num_valid :]
    return PictureSplit(seed, tuple(sorted(train)), tuple(sorted(valid)), tuple(sorted(test)))


def count_held_out(num_pictures: int) -> tuple[int, int]:
    """Return how many pictures of a class are for validation and for the test."""
    if num_pictures < MIN_PICTURES_FOR_TEST:
        return num_pictures // 2, 0
    count = max(1, (num_pictures + PICTURES_PER_TEST_PICTURE // 2) // PICTURES_PER_TEST_PICTURE)
    return count, count


def check_same_pictures(split: PictureSplit, names: Iterable[str], root: Path) -> None:
    """Raise InputError unless the folder has exactly the pictures of a stored split."""
    names, split_names = set(names), {*split.train, *split.valid, *split.test}
    if names == split_names:
        return
    new, missing = _list_names(names - split_names), _list_names(split_names - names)
    changes = "; ".join([*([f"new: {new}"] if new else []), *([f"missing: {missing}"] if missing else [])])
    raise InputError(
        f"{root} has other pictures than the run was started with ({changes}): restore them, or start a new run"
    )


def _list_names(names: set[str]) -> str:
    shown = sorted(names)[:MAX_LISTED_PICTURES]
    suffix = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + suffix


def _hash_name(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
