"""The digits, the validation split, and the entries of DATASETS."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data.datasets import DATASETS, default_data_folder
from lcrbnn.data.digits import load_digits, read_digits
from lcrbnn.data.loading.augment import AUGMENTATIONS
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import InputError


def make_numbered_images(count: int) -> ImageArrays:
    """Return images of one pixel, whose value and label are the number of the image."""
    number = np.arange(count)
    images = number.astype(np.uint8).reshape(-1, 1, 1, 1)
    return ImageArrays(Split(images, number), Split(images[:0], number[:0]))


def test_digits_contain_each_image_once() -> None:
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


def test_the_digits_split_depends_only_on_the_seed() -> None:
    assert np.array_equal(load_digits(1)[1].labels, load_digits(1)[1].labels)
    assert not np.array_equal(load_digits(1)[1].labels, load_digits(2)[1].labels)


def test_an_invalid_seed_is_rejected() -> None:
    with pytest.raises(InputError, match="seed must be a whole number of at least 0; got -1"):
        load_digits(-1)


def test_digits_are_stored_as_uint8_from_0_to_16() -> None:
    digits = read_digits()
    for split in (digits.train, digits.test):
        assert split.images.dtype == np.uint8
        assert split.labels.dtype == np.int64
        assert (split.images.min(), split.images.max()) == (0, 16)


def test_load_digits_scales_the_stored_digits_to_1() -> None:
    digits = read_digits(3)
    for stored, scaled in zip((digits.train, digits.test), load_digits(3), strict=True):
        assert np.array_equal(stored.images / 16, scaled.images)
        assert np.array_equal(stored.labels, scaled.labels)


def test_take_returns_images_with_their_labels() -> None:
    subset = make_numbered_images(10).train.take(np.array([7, 2]))
    assert subset.labels.tolist() == [7, 2]
    assert subset.images.flatten().tolist() == [7, 2]


@pytest.mark.parametrize("num_validation_images", [0, 1, 30, 100])
def test_every_training_image_is_in_the_train_or_validation_split(num_validation_images: int) -> None:
    train, validation = make_numbered_images(100).split_validation(num_validation_images)
    assert len(train.labels) == 100 - num_validation_images
    assert len(validation.labels) == num_validation_images
    assert not set(train.labels) & set(validation.labels)
    assert set(train.labels) | set(validation.labels) == set(range(100))
    for split in (train, validation):  # images keep their labels and their order
        assert np.array_equal(split.images.flatten(), split.labels)
        assert np.array_equal(split.labels, np.sort(split.labels))


def test_the_validation_images_are_always_the_same() -> None:
    assert make_numbered_images(20).split_validation(5)[1].labels.tolist() == [
        2,
        4,
        6,
        13,
        19,
    ]  # must never change


def test_digits_have_1000_training_and_297_validation_images() -> None:
    dataset = DATASETS["digits"]
    digits = dataset.load(Path("nowhere"))
    train, validation = digits.split_validation(dataset.num_validation_images)
    assert (len(train.labels), len(validation.labels), len(digits.test.labels)) == (1000, 297, 500)
    all_images = np.concatenate([train.images, validation.images, digits.test.images])
    assert len({i.tobytes() for i in all_images}) == 1797


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_entry_is_consistent(name: str) -> None:
    dataset = DATASETS[name]
    assert dataset.name == name
    assert len(dataset.mean) == len(dataset.std) == dataset.channels
    assert min(dataset.std) > 0
    assert dataset.default_augmentation in AUGMENTATIONS
    assert dataset.max_pixel_value > 0
    assert dataset.num_validation_images > 0


def test_the_digits_entry_matches_the_images() -> None:
    dataset = DATASETS["digits"]
    train = dataset.load(Path("nowhere")).train
    assert train.images.shape[1:] == (dataset.channels, dataset.image_size, dataset.image_size)
    assert train.images.max() == dataset.max_pixel_value
    assert set(train.labels) == set(range(dataset.num_classes))
    assert dataset.num_validation_images < len(train.labels)


@pytest.mark.parametrize(("variable", "folder"), [("/some/where", "/some/where"), ("", "data"), (None, "data")])
def test_the_default_data_folder_is_read_from_the_environment(
    variable: str | None, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LCRBNN_DATA", raising=False)
    if variable is not None:
        monkeypatch.setenv("LCRBNN_DATA", variable)
    assert default_data_folder() == Path(folder)


def test_a_sample_of_an_image_folder_contains_all_classes() -> None:
    """Images of a folder are sorted by class. For other data sets, a sample consists of the first images."""
    labels = np.repeat(np.arange(4), 6)
    split = Split(np.arange(24, dtype=np.uint8).reshape(-1, 1, 1, 1), labels)
    for name, rows in (("folder", [0, 6, 12, 18]), ("digits", [0, 1, 2, 3])):
        sample = DATASETS[name].sample_split(split, 4)
        assert sample.images.ravel().tolist() == rows
        assert sample.labels.tolist() == labels[rows].tolist()
    assert DATASETS["folder"].sample_split(split, 24).images.ravel().tolist() == list(range(24))
