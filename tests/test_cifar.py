"""CIFAR-10 from its files: small ones of random bytes, with MD5s of their own."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lcrbnn.data import DATASETS, Images
from lcrbnn.data.cifar import LAYOUTS, load_cifar10
from lcrbnn.errors import InputError

BINARY, PICKLED = LAYOUTS
COUNT = 20  # images a file
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]

Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def random_parts() -> Parts:
    """For each file, rows of 3072 bytes and labels."""
    rng = np.random.default_rng(0)
    return {name: (rng.integers(0, 256, (COUNT, 3072), np.uint8), rng.integers(0, 10, COUNT)) for name in NAMES}


def as_binary(rows: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for row, label in zip(rows, labels, strict=True))


def as_python3(rows: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2)


def as_python2(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """Opcode by opcode what Python 2 and its NumPy wrote into the official files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    return b"".join(
        [
            b"\x80\x02}q\x01(",
            text(b"batch_label") + text(b"training batch 1 of 5"),
            text(b"labels") + b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e",
            text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R",
            b"(K\x01M" + struct.pack("<H", len(rows)) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86",
            b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R",
            b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb",
            b"u.",
        ]
    )


def binary_files(parts: Parts) -> dict[str, bytes]:
    return {f"{name}.bin": as_binary(*part) for name, part in parts.items()}


def pickled_files(parts: Parts, write: Callable[..., bytes] = as_python2) -> dict[str, bytes]:
    return {name: write(*part) for name, part in parts.items()}


def declare_official(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, the official MD5s are those of these files."""
    for layout in LAYOUTS:
        for name in files.keys() & layout.files.keys():
            monkeypatch.setitem(layout.files, name, hashlib.md5(files[name]).hexdigest())


def put(files: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def same(one: Images, other: Images) -> bool:
    pairs = [(one.train, other.train), (one.test, other.test)]
    return all(np.array_equal(a.images, b.images) and np.array_equal(a.labels, b.labels) for a, b in pairs)


def refusal(folder: Path) -> str:
    """The one sentence that loading ends with."""
    with pytest.raises(InputError) as caught:
        load_cifar10(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


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


@pytest.mark.parametrize("write", [as_python2, as_python3])
def test_both_layouts_give_the_same_images(
    write: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = random_parts()
    for folder, files in (("binary", binary_files(parts)), ("pickled", pickled_files(parts, write))):
        declare_official(files, monkeypatch)
        put(files, tmp_path / folder)
    assert same(load_cifar10(tmp_path / "binary"), load_cifar10(tmp_path / "pickled"))


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
        "`lcrbnn data cifar10` fetches it"
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


def official_pickle(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six files, of which the first is `content`; all with the MD5s that are asked for."""
    files = pickled_files(random_parts()) | {"data_batch_1": content}
    declare_official(files, monkeypatch)
    put(files, folder)
    return folder / "data_batch_1"


ROWS, LABELS = np.zeros((2, 3072), np.uint8), [0, 1]


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({b"data": ROWS[:, 1:], b"labels": LABELS}, "holds images of shape (2, 3071) and type uint8, not rows of 3072"),
        ({b"data": ROWS[:1], b"labels": LABELS}, "holds images of shape (1, 3072) and type uint8"),
        ({b"data": ROWS[0], b"labels": LABELS}, "holds images of shape (3072,) and type uint8"),
        ({b"data": ROWS.astype(np.int64), b"labels": LABELS}, "holds images of shape (2, 3072) and type int64"),
        ({b"data": ROWS, b"labels": [0, -1]}, "holds labels outside 0 to 9"),
        ({b"data": ROWS, b"labels": [0.0, 1.0]}, "holds labels outside 0 to 9"),
        ({b"data": ROWS, b"labels": [b"0", b"1"]}, "holds labels outside 0 to 9"),
        ({b"data": ROWS, b"fine_labels": LABELS}, "does not hold the data and labels of CIFAR-10"),  # CIFAR-100's
        ([ROWS, LABELS], "does not hold the data and labels of CIFAR-10"),
    ],
)
def test_a_pickle_of_something_else_is_refused(
    stored: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = official_pickle(pickle.dumps(stored, protocol=2), tmp_path, monkeypatch)
    assert refusal(tmp_path).startswith(f"{path} {sentence}")


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x02", as_python2(ROWS, np.array(LABELS))[:-50]])
def test_what_is_no_whole_pickle_is_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = official_pickle(content, tmp_path, monkeypatch)
    assert refusal(tmp_path).startswith(f"{path} is no pickle of arrays: ")


# ---------------------------------------------------------------------------------------------------------------
# Pickles that would run something.
class Runs:
    """A pickle of it calls `function` with `arguments` when it is loaded by pickle itself."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_a_pickle_that_runs_a_command_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    content = pickle.dumps({b"data": Runs(os.system, f"touch {trace}"), b"labels": LABELS}, protocol=2)
    path = official_pickle(content, tmp_path / "data", monkeypatch)
    assert refusal(tmp_path / "data") == (
        f"{path} is no pickle of arrays: it asks for {os.system.__module__}.system, which no array needs"
    )
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()  # the payload works where nobody looks


@pytest.mark.parametrize(
    ("payload", "asked"),
    [
        (Runs(eval, "1 + 1"), "__builtin__.eval"),
        (Runs(getattr, "text", "upper"), "__builtin__.getattr"),
        (Runs(functools.partial, print), "functools.partial"),
        (Runs(np.load, "file.npy"), "numpy.load"),
        (np.float64(1.0), "numpy."),  # its module has moved
        (Path("file"), "pathlib"),
        (Runs(torch.load, "file.pt"), "torch.serialization.load"),
    ],
)
def test_whatever_is_no_array_is_refused(
    payload: Any, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = official_pickle(pickle.dumps({b"data": payload, b"labels": LABELS}, protocol=2), tmp_path, monkeypatch)
    sentence = refusal(tmp_path)
    assert sentence.startswith(f"{path} is no pickle of arrays: it asks for {asked}")
    assert sentence.endswith(", which no array needs")


def test_no_name_of_a_pickle_leads_to_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # in protocol 4 a name may have dots: numpy.ndarray is let through, numpy.ndarray.tofile must not be
    content = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    path = official_pickle(content, tmp_path, monkeypatch)
    assert refusal(tmp_path) == (
        f"{path} is no pickle of arrays: it asks for numpy.ndarray.tofile, which no array needs"
    )


def test_bytes_come_from_no_other_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = as_python3(ROWS, np.array(LABELS)).replace(b"\x06\x00\x00\x00latin1", b"\x06\x00\x00\x00rot_13")
    path = official_pickle(content, tmp_path, monkeypatch)
    assert refusal(tmp_path) == f"{path} is no pickle of arrays: it asks for the encoding 'rot_13'"


def test_arrays_of_other_kinds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = as_python2(ROWS, np.array(LABELS)).replace(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n")
    path = official_pickle(content, tmp_path, monkeypatch)
    assert refusal(tmp_path) == f"{path} is no pickle of arrays: it asks for an array of an unknown kind"


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
