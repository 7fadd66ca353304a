"""CIFAR-10 from its files: small ones of random bytes, with MD5s of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data import DATASETS, Images, cifar
from lcrbnn.data.cifar import LAYOUTS, load_cifar10, load_small_cifar10
from tests.data.helpers import (
    COUNT,
    NAMES,
    as_python2,
    as_python3,
    binary_files,
    declare_official,
    pickled_files,
    put,
    random_parts,
)
from tests.data.helpers import load_refusal as refusal

BINARY, PICKLED = LAYOUTS


def same(one: Images, other: Images) -> bool:
    pairs = [(one.train, other.train), (one.test, other.test)]
    return all(np.array_equal(a.images, b.images) and np.array_equal(a.labels, b.labels) for a, b in pairs)


# ---------------------------------------------------------------------------------------------------------------
# Both layouts.
def test_the_binary_files_hold_a_label_then_red_green_and_blue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = random_parts()
    files = binary_files(parts)
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    images = load_cifar10(tmp_path)
    for split, names in ((images.train, NAMES[:5]), (images.test, NAMES[5:])):
        assert split.images.shape == (COUNT * len(names), 3, 32, 32)
        assert split.images.dtype == np.uint8
        assert split.labels.dtype == np.int64
        assert split.labels.tolist() == [label for name in names for label in parts[name][1]]
    rows = parts["data_batch_2"][0]  # image 3 of the second file, its green pixel in row 5, column 7
    assert images.train.images[COUNT + 3, 1, 5, 7] == rows[3, 1024 + 5 * 32 + 7]


def test_the_small_data_set_has_the_first_training_images_and_all_test_images_at_half_the_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pixel is the mean of four, rounded half up, in floats that hold it exactly."""
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    monkeypatch.setattr(cifar, "_FEW", COUNT + 2)
    whole, small = load_cifar10(tmp_path), load_small_cifar10(tmp_path)
    for few, many, count in ((small.train, whole.train, COUNT + 2), (small.test, whole.test, COUNT)):
        assert few.labels.tolist() == many.labels[:count].tolist()
        exact = many.images[:count].astype(float)
        corners = [exact[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)]
        assert few.images.dtype == np.uint8
        assert np.array_equal(few.images, np.floor(sum(corners) / 4 + 0.5))
    row = DATASETS["cifar10-small"]
    assert (row.image, row.held_out, row.load) == (16, 10_000, load_small_cifar10)


@pytest.mark.parametrize("write", [as_python2, as_python3])
def test_both_layouts_give_the_same_images(
    write: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = random_parts()
    for folder, files in (("binary", binary_files(parts)), ("pickled", pickled_files(parts, write))):
        declare_official(files, monkeypatch)
        put(files, tmp_path / folder)
    assert same(load_cifar10(tmp_path / "binary"), load_cifar10(tmp_path / "pickled"))


def test_a_file_is_no_folder_of_images(tmp_path: Path) -> None:
    (tmp_path / "x.bnn").write_bytes(b"LCRBNN")
    assert refusal(tmp_path / "x.bnn") == f"CIFAR-10 comes from a folder, and {tmp_path / 'x.bnn'} is a file"


@pytest.mark.parametrize("pickled", [False, True])
def test_files_are_found_in_the_folder_and_in_that_of_their_archive(
    pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = random_parts()
    files, layout = (pickled_files(parts), PICKLED) if pickled else (binary_files(parts), BINARY)
    declare_official(files, monkeypatch)
    put(files, tmp_path / "plain")
    put(files, tmp_path / "unpacked" / layout.folder)
    assert layout.folder == ("cifar-10-batches-py" if pickled else "cifar-10-batches-bin")
    assert same(load_cifar10(tmp_path / "plain"), load_cifar10(tmp_path / "unpacked"))


def test_the_row_of_cifar10_describes_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    row = DATASETS["cifar10"]
    train = row.load(tmp_path).train
    assert train.images.shape[1:] == (row.channels, row.image, row.image)
    assert (row.top, row.classes) == (255, 10)


@pytest.mark.parametrize("pickled", [False, True])
def test_the_images_can_be_written_to_as_torch_demands_of_arrays(
    pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pickled_files(random_parts()) if pickled else binary_files(random_parts())
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    images = load_cifar10(tmp_path)
    assert images.train.images.flags.writeable
    assert images.test.images.flags.writeable


# ---------------------------------------------------------------------------------------------------------------
# What is refused, with a sentence that names the file.
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_one_other_byte_is_refused(
    name: str, pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pickled_files(random_parts()) if pickled else binary_files(random_parts())
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    path = tmp_path / (name if pickled else f"{name}.bin")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    official, seen = hashlib.md5(files[path.name]).hexdigest(), hashlib.md5(content).hexdigest()
    size = f"{len(content):,} bytes"
    assert refusal(tmp_path) == f"{path} is not the official file: its MD5 is {seen} instead of {official} ({size})"


@pytest.mark.parametrize("left", [0, 3073, -1])
def test_a_truncated_file_is_refused(left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    put(files | {"data_batch_3.bin": files["data_batch_3.bin"][:left]}, tmp_path)
    assert refusal(tmp_path).startswith(f"{tmp_path / 'data_batch_3.bin'} is not the official file: its MD5 is ")


@pytest.mark.parametrize("gone", NAMES)
def test_a_missing_file_is_named(gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    (tmp_path / f"{gone}.bin").unlink()
    assert refusal(tmp_path) == f"{tmp_path / gone}.bin cannot be read: No such file or directory"


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_anything_is_answered_with_what_to_do(there: bool, tmp_path: Path) -> None:
    folder = tmp_path if there else tmp_path / "nowhere"
    assert refusal(folder) == (
        f"CIFAR-10 is not in {folder}: neither its files nor a folder cifar-10-batches-bin or cifar-10-batches-py; "
        f"`lcrbnn data cifar10 --data-folder {folder}` fetches it"
    )


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    path = tmp_path / "data_batch_4.bin"
    path.mkdir()
    del files[path.name]
    put(files, tmp_path)
    assert refusal(tmp_path) == f"{path} cannot be read: Is a directory"


@pytest.mark.parametrize("name", ["data_batch_5", "test_batch"])
@pytest.mark.parametrize("pickled", [False, True])
def test_labels_over_9_are_refused(name: str, pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = random_parts()
    parts[name][1][-1] = 10
    files = pickled_files(parts) if pickled else binary_files(parts)
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    assert refusal(tmp_path) == f"{tmp_path / name}{'' if pickled else '.bin'} holds labels outside 0 to 9"


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(2 * 3073 + 1)])
def test_a_binary_file_of_no_whole_number_of_images_is_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = binary_files(random_parts()) | {"data_batch_1.bin": content}
    declare_official(files, monkeypatch)
    put(files, tmp_path)
    assert refusal(tmp_path) == (
        f"{tmp_path / 'data_batch_1.bin'} holds {len(content):,} bytes, "
        "which is no whole number of images of 3073 bytes"
    )


@pytest.mark.parametrize("pickled", [False, True])
def test_no_file_is_looked_into_before_its_md5_is_right(
    pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pickled_files(random_parts()) if pickled else binary_files(random_parts())
    declare_official(files, monkeypatch)
    first = next(iter(files))
    # neither a pickle nor a whole number of images: had it been looked into, the sentence would say so
    put(files | {first: b"other"}, tmp_path)
    assert refusal(tmp_path).startswith(f"{tmp_path / first} is not the official file: its MD5 is ")
