"""The digits, the division into learned from and held out, and the rows of data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data import DATASETS, Images, Split, data_folder, load_digits
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import InputError
from lcrbnn.train.augment import AUGMENT


def numbered(count: int) -> Images:
    """Images that hold nothing but their number, in pixel and label."""
    number = np.arange(count)
    images = number.astype(np.uint8).reshape(-1, 1, 1, 1)
    return Images(Split(images, number), Split(images[:0], number[:0]))


def test_the_digits_are_all_there_once() -> None:
    train, test = load_digits()
    assert train.images.shape == (1297, 1, 8, 8)
    assert test.images.shape == (500, 1, 8, 8)
    images = np.concatenate([train.images, test.images])
    labels = np.concatenate([train.labels, test.labels])
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    # the published class counts of the 1,797 images
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len({i.tobytes() for i in images}) == 1797


def test_the_split_depends_on_the_seed_alone() -> None:
    assert np.array_equal(load_digits(1)[1].labels, load_digits(1)[1].labels)
    assert not np.array_equal(load_digits(1)[1].labels, load_digits(2)[1].labels)


def test_a_strange_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed must be a whole number of at least 0; got -1"):
        load_digits(-1)


def test_the_digits_are_stored_as_whole_numbers_from_0_to_16() -> None:
    digits = read_digits()
    for split in (digits.train, digits.test):
        assert split.images.dtype == np.uint8
        assert split.labels.dtype == np.int64
        assert (split.images.min(), split.images.max()) == (0, 16)


def test_load_digits_gives_the_stored_digits_in_units_of_the_brightest() -> None:
    digits = read_digits(3)
    for stored, ready in zip((digits.train, digits.test), load_digits(3), strict=True):
        assert np.array_equal(stored.images / 16, ready.images)
        assert np.array_equal(stored.labels, ready.labels)


def test_a_split_gives_some_of_its_images_with_their_labels() -> None:
    some = numbered(10).train.take(np.array([7, 2]))
    assert some.labels.tolist() == [7, 2]
    assert some.images.flatten().tolist() == [7, 2]


@pytest.mark.parametrize("held_out", [0, 1, 30, 100])
def test_every_training_image_is_either_learned_from_or_held_out(held_out: int) -> None:
    learned, held = numbered(100).divided(held_out)
    assert len(learned.labels) == 100 - held_out
    assert len(held.labels) == held_out
    assert not set(learned.labels) & set(held.labels)
    assert set(learned.labels) | set(held.labels) == set(range(100))
    for split in (learned, held):  # an image keeps its label, and the order is the published one
        assert np.array_equal(split.images.flatten(), split.labels)
        assert np.array_equal(split.labels, np.sort(split.labels))


def test_the_held_out_images_are_always_the_same_ones() -> None:
    assert numbered(20).divided(5)[1].labels.tolist() == [2, 4, 6, 13, 19]  # in every run of every version


def test_the_digits_row_learns_from_1000_images_and_holds_out_297() -> None:
    row = DATASETS["digits"]
    digits = row.load(Path("nowhere"))
    learned, held = digits.divided(row.held_out)
    assert (len(learned.labels), len(held.labels), len(digits.test.labels)) == (1000, 297, 500)
    every = np.concatenate([learned.images, held.images, digits.test.images])
    assert len({i.tobytes() for i in every}) == 1797


@pytest.mark.parametrize("name", DATASETS)
def test_a_row_of_data_sets_agrees_with_itself(name: str) -> None:
    row = DATASETS[name]
    assert row.name == name
    assert len(row.mean) == len(row.std) == row.channels
    assert min(row.std) > 0
    assert row.augment in AUGMENT
    assert row.top > 0
    assert row.held_out > 0


def test_the_digits_row_describes_its_images() -> None:
    row = DATASETS["digits"]
    train = row.load(Path("nowhere")).train
    assert train.images.shape[1:] == (row.channels, row.image, row.image)
    assert train.images.max() == row.top
    assert set(train.labels) == set(range(row.classes))
    assert row.held_out < len(train.labels)


@pytest.mark.parametrize(("said", "folder"), [("/some/where", "/some/where"), ("", "data"), (None, "data")])
def test_data_sets_are_looked_for_where_the_environment_says(
    said: str | None, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LCRBNN_DATA", raising=False)
    if said is not None:
        monkeypatch.setenv("LCRBNN_DATA", said)
    assert data_folder() == Path(folder)


def test_some_images_of_a_tree_are_of_all_its_classes() -> None:
    """It lies class by class; other data sets are in no order, and their first images are taken."""
    labels = np.repeat(np.arange(4), 6)
    split = Split(np.arange(24, dtype=np.uint8).reshape(-1, 1, 1, 1), labels)
    for name, rows in (("folder", [0, 6, 12, 18]), ("digits", [0, 1, 2, 3])):
        some = DATASETS[name].some(split, 4)
        assert some.images.ravel().tolist() == rows
        assert some.labels.tolist() == labels[rows].tolist()
    assert DATASETS["folder"].some(split, 24).images.ravel().tolist() == list(range(24))
