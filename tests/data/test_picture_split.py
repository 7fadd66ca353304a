"""The split of class folders: quotas, dependence on names and seed only, and the check of stored splits."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.data.image_files.picture_split import (
    PictureSplit,
    check_same_pictures,
    count_held_out,
    divide_pictures,
)
from lcrbnn.errors import InputError

GOLDEN_HELD_OUT = (("ant/02.png", "bee/07.png"), ("ant/04.png", "bee/04.png"))  # validation and test, seed 0


def divide_slowly(names: list[str], seed: int) -> dict[str, str]:
    """Return the split of each name of one class, by counting the names with smaller hashes."""
    keys = {name: hashlib.sha256(f"{seed}/{name}".encode()).hexdigest() for name in names}
    quota = max(1, round(len(names) / 10 + 1e-9)) if len(names) >= 3 else 0
    splits = {}
    for name in names:
        rank = sum(keys[other] < keys[name] for other in names)
        splits[name] = "test" if rank < quota else "valid" if rank < 2 * quota else "train"
    return splits


@pytest.mark.parametrize("seed", [0, 1, 2**62])
@pytest.mark.parametrize("count", [3, 4, 10, 15, 30, 101])
def test_the_split_equals_a_slow_reference(count: int, seed: int) -> None:
    names = [f"cat/é {i}.png" for i in range(count)]
    split = divide_pictures({"cat": names}, seed)
    expected = divide_slowly(names, seed)
    for part in ("train", "valid", "test"):
        assert list(getattr(split, part)) == sorted(name for name, value in expected.items() if value == part)


def test_the_split_of_these_names_never_changes() -> None:
    """Runs of older versions must find the same split again."""
    names = {c: [f"{c}/{i:02d}.png" for i in range(10)] for c in ("ant", "bee")}
    split = divide_pictures(names, 0)
    assert (split.valid, split.test) == GOLDEN_HELD_OUT
    assert divide_pictures(names, 1) != split._replace(seed=1)


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 40), min_size=1), st.integers(0, 9))
def test_every_picture_is_in_one_split_whatever_the_order(counts: dict[str, int], seed: int) -> None:
    names = {c: [f"{c}/{i}.png" for i in range(n)] for c, n in counts.items()}
    split = divide_pictures(names, seed)
    all_names = sorted([*split.train, *split.valid, *split.test])
    assert all_names == sorted(name for class_names in names.values() for name in class_names)
    shuffled = {c: random.Random(seed).sample(n, len(n)) for c, n in reversed(names.items())}
    assert divide_pictures(shuffled, seed) == split


@pytest.mark.parametrize(
    ("count", "held_out"),
    [(0, (0, 0)), (1, (0, 0)), (2, (1, 0)), (3, (1, 1)), (14, (1, 1)), (15, (2, 2)), (30, (3, 3)), (1000, (100, 100))],
)
def test_small_classes_keep_a_training_picture_and_others_have_all_parts(count: int, held_out: tuple[int, int]) -> None:
    assert count_held_out(count) == held_out
    assert count - sum(held_out) >= min(count, 1)


def test_a_stored_split_rejects_new_and_missing_pictures() -> None:
    split = PictureSplit(0, ("a/1", "a/2"), ("a/3",), ("a/4",))
    check_same_pictures(split, ["a/4", "a/3", "a/2", "a/1"], Path("pics"))
    with pytest.raises(InputError, match=r"new: a/5; missing: a/4"):
        check_same_pictures(split, ["a/1", "a/2", "a/3", "a/5"], Path("pics"))


def test_the_digest_depends_on_the_split_of_each_picture() -> None:
    split = PictureSplit(0, ("a", "b"), ("c",), ("d",))
    assert split._replace(seed=1).digest() == split.digest()
    assert split._replace(train=("a", "c"), valid=("b",)).digest() != split.digest()
    assert split._replace(test=("e",)).digest() != split.digest()


@pytest.mark.parametrize(
    "content",
    [{}, {"seed": "0", "train": [], "valid": [], "test": []}, {"seed": 0, "train": [1], "valid": [], "test": []}],
)
def test_damaged_content_is_no_split(content: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"split.json cannot be read"):
        PictureSplit.from_json(content, Path("split.json"))
