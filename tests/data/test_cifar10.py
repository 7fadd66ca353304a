"""Loading CIFAR-10 from small files of random bytes whose MD5s count as official."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data import cifar10 as cifar10
from lcrbnn.data.cifar10 import LAYOUTS, load_cifar10, load_small_cifar10
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.split import ImageArrays
from tests.data.cifar10_files import (
    FILE_NAMES,
    IMAGES_PER_FILE,
    get_load_error,
    make_binary_files,
    make_pickled_files,
    make_random_contents,
    pickle_with_python2,
    pickle_with_python3,
    set_official_md5s,
    write_files,
)

BINARY, PICKLED = LAYOUTS


def are_equal(images: ImageArrays, other_images: ImageArrays) -> bool:
    pairs = [(images.train, other_images.train), (images.test, other_images.test)]
    return all(np.array_equal(a.images, b.images) and np.array_equal(a.labels, b.labels) for a, b in pairs)


# Both layouts
def test_binary_files_store_a_label_then_red_green_and_blue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = make_random_contents()
    files = make_binary_files(contents)
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    images = load_cifar10(tmp_path)
    for split, names in ((images.train, FILE_NAMES[:5]), (images.test, FILE_NAMES[5:])):
        assert split.images.shape == (IMAGES_PER_FILE * len(names), 3, 32, 32)
        assert split.images.dtype == np.uint8
        assert split.labels.dtype == np.int64
        assert split.labels.tolist() == [label for name in names for label in contents[name][1]]
    rows = contents["data_batch_2"][0]  # image 3 of the second file, its green pixel in row 5, column 7
    assert images.train.images[IMAGES_PER_FILE + 3, 1, 5, 7] == rows[3, 1024 + 5 * 32 + 7]


def test_the_small_data_set_has_the_first_training_images_and_all_test_images_at_16_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pixel is the mean of four pixels, rounded half up."""
    files = make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    monkeypatch.setattr(cifar10, "_NUM_SMALL_TRAIN_IMAGES", IMAGES_PER_FILE + 2)
    full_size, small = load_cifar10(tmp_path), load_small_cifar10(tmp_path)
    for small_split, full_split, count in (
        (small.train, full_size.train, IMAGES_PER_FILE + 2),
        (small.test, full_size.test, IMAGES_PER_FILE),
    ):
        assert small_split.labels.tolist() == full_split.labels[:count].tolist()
        exact = full_split.images[:count].astype(float)
        corners = [exact[:, :, dataset::2, column::2] for dataset in (0, 1) for column in (0, 1)]
        assert small_split.images.dtype == np.uint8
        assert np.array_equal(small_split.images, np.floor(sum(corners) / 4 + 0.5))
    dataset = DATASETS["cifar10-small"]
    assert (dataset.image_size, dataset.num_validation_images, dataset.load) == (16, 10_000, load_small_cifar10)


@pytest.mark.parametrize("write", [pickle_with_python2, pickle_with_python3])
def test_both_layouts_give_the_same_images(
    write: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_random_contents()
    for folder, files in (("binary", make_binary_files(contents)), ("pickled", make_pickled_files(contents, write))):
        set_official_md5s(files, monkeypatch)
        write_files(files, tmp_path / folder)
    assert are_equal(load_cifar10(tmp_path / "binary"), load_cifar10(tmp_path / "pickled"))


def test_a_file_instead_of_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.bnn").write_bytes(b"LCRBNN")
    assert get_load_error(tmp_path / "x.bnn") == f"CIFAR-10 is read from a folder, but {tmp_path / 'x.bnn'} is a file"


@pytest.mark.parametrize("is_pickled", [False, True])
def test_files_are_found_in_the_folder_and_in_the_folder_of_their_archive(
    is_pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_random_contents()
    files, layout = (make_pickled_files(contents), PICKLED) if is_pickled else (make_binary_files(contents), BINARY)
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path / "plain")
    write_files(files, tmp_path / "unpacked" / layout.folder)
    assert layout.folder == ("cifar-10-batches-py" if is_pickled else "cifar-10-batches-bin")
    assert are_equal(load_cifar10(tmp_path / "plain"), load_cifar10(tmp_path / "unpacked"))


def test_the_dataset_entry_matches_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    dataset = DATASETS["cifar10"]
    train = dataset.load(tmp_path).train
    assert train.images.shape[1:] == (dataset.channels, dataset.image_size, dataset.image_size)
    assert (dataset.max_pixel_value, dataset.num_classes) == (255, 10)


@pytest.mark.parametrize("is_pickled", [False, True])
def test_image_arrays_are_writeable(is_pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_pickled_files(make_random_contents()) if is_pickled else make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    images = load_cifar10(tmp_path)
    assert images.train.images.flags.writeable
    assert images.test.images.flags.writeable


# Rejected files
@pytest.mark.parametrize("is_pickled", [False, True])
@pytest.mark.parametrize("name", FILE_NAMES)
def test_a_file_with_a_wrong_byte_is_rejected(
    name: str, is_pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_pickled_files(make_random_contents()) if is_pickled else make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    path = tmp_path / (name if is_pickled else f"{name}.bin")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    official_md5, actual_md5 = hashlib.md5(files[path.name]).hexdigest(), hashlib.md5(content).hexdigest()
    size = f"{len(content):,} bytes"
    assert (
        get_load_error(tmp_path)
        == f"{path} is not the official file: its MD5 is {actual_md5} instead of {official_md5} ({size})"
    )


@pytest.mark.parametrize("num_bytes", [0, 3073, -1])
def test_a_truncated_file_is_rejected(num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    write_files(files | {"data_batch_3.bin": files["data_batch_3.bin"][:num_bytes]}, tmp_path)
    assert get_load_error(tmp_path).startswith(f"{tmp_path / 'data_batch_3.bin'} is not the official file: its MD5 is ")


@pytest.mark.parametrize("missing_name", FILE_NAMES)
def test_a_missing_file_is_reported(missing_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    (tmp_path / f"{missing_name}.bin").unlink()
    assert get_load_error(tmp_path) == f"{tmp_path / missing_name}.bin cannot be read: No such file or directory"


@pytest.mark.parametrize("folder_exists", [True, False])
def test_an_empty_or_missing_folder_is_reported_with_the_download_command(folder_exists: bool, tmp_path: Path) -> None:
    folder = tmp_path if folder_exists else tmp_path / "nowhere"
    assert get_load_error(folder) == (
        f"CIFAR-10 was not found in {folder}, which has neither its files nor a folder cifar-10-batches-bin or "
        f"cifar-10-batches-py; download it with `lcrbnn data cifar10 --data-folder {folder}`"
    )


def test_a_folder_in_place_of_a_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    path = tmp_path / "data_batch_4.bin"
    path.mkdir()
    del files[path.name]
    write_files(files, tmp_path)
    assert get_load_error(tmp_path) == f"{path} cannot be read: Is a directory"


@pytest.mark.parametrize("name", ["data_batch_5", "test_batch"])
@pytest.mark.parametrize("is_pickled", [False, True])
def test_labels_above_9_are_rejected(
    name: str, is_pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_random_contents()
    contents[name][1][-1] = 10
    files = make_pickled_files(contents) if is_pickled else make_binary_files(contents)
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    assert get_load_error(tmp_path) == f"{tmp_path / name}{'' if is_pickled else '.bin'} contains labels outside 0 to 9"


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(2 * 3073 + 1)])
def test_a_binary_file_with_part_of_an_image_is_rejected(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_binary_files(make_random_contents()) | {"data_batch_1.bin": content}
    set_official_md5s(files, monkeypatch)
    write_files(files, tmp_path)
    assert get_load_error(tmp_path) == (
        f"{tmp_path / 'data_batch_1.bin'} has {len(content):,} bytes, "
        "which is not a multiple of the 3073 bytes of an image"
    )


@pytest.mark.parametrize("is_pickled", [False, True])
def test_a_file_is_parsed_only_if_its_md5_is_correct(
    is_pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_pickled_files(make_random_contents()) if is_pickled else make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    first_name = next(iter(files))
    # The content is neither a pickle nor a whole number of images. Parsing it would give another message.
    write_files(files | {first_name: b"other"}, tmp_path)
    assert get_load_error(tmp_path).startswith(f"{tmp_path / first_name} is not the official file: its MD5 is ")
