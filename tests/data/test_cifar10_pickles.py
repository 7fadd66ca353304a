"""CIFAR-10 pickles with other content, and pickles that would run code."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.cifar10_files import (
    get_load_error,
    make_pickled_files,
    make_random_contents,
    pickle_with_python2,
    pickle_with_python3,
    set_official_md5s,
    write_files,
)


def write_official_pickle(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write six files of which the first has this content. All have the official MD5s."""
    files = make_pickled_files(make_random_contents()) | {"data_batch_1": content}
    set_official_md5s(files, monkeypatch)
    write_files(files, folder)
    return folder / "data_batch_1"


ROWS, LABELS = np.zeros((2, 3072), np.uint8), [0, 1]


@pytest.mark.parametrize(
    ("pickled_value", "message"),
    [
        (
            {b"data": ROWS[:, 1:], b"labels": LABELS},
            "contains images of shape (2, 3071) and type uint8; expected rows",
        ),
        ({b"data": ROWS[:1], b"labels": LABELS}, "contains images of shape (1, 3072) and type uint8"),
        ({b"data": ROWS[0], b"labels": LABELS}, "contains images of shape (3072,) and type uint8"),
        ({b"data": ROWS.astype(np.int64), b"labels": LABELS}, "contains images of shape (2, 3072) and type int64"),
        ({b"data": ROWS, b"labels": [0, -1]}, "contains labels outside 0 to 9"),
        ({b"data": ROWS, b"labels": [0.0, 1.0]}, "contains labels outside 0 to 9"),
        ({b"data": ROWS, b"labels": [b"0", b"1"]}, "contains labels outside 0 to 9"),
        (
            {b"data": ROWS, b"fine_labels": LABELS},
            "does not contain the data and labels of CIFAR-10",
        ),  # as in CIFAR-100
        ([ROWS, LABELS], "does not contain the data and labels of CIFAR-10"),
    ],
)
def test_a_pickle_with_other_content_is_rejected(
    pickled_value: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_official_pickle(pickle.dumps(pickled_value, protocol=2), tmp_path, monkeypatch)
    assert get_load_error(tmp_path).startswith(f"{path} {message}")


@pytest.mark.parametrize(
    "content", [b"", b"not a pickle", b"\x80\x02", pickle_with_python2(ROWS, np.array(LABELS))[:-50]]
)
def test_an_incomplete_pickle_is_rejected(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_official_pickle(content, tmp_path, monkeypatch)
    assert get_load_error(tmp_path).startswith(f"{path} is not a pickle of arrays: ")


# Pickles that would run code
class CallsFunction:
    """An object whose pickle calls `function` with `arguments` when Python's pickle module loads it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_a_pickle_that_runs_a_command_is_rejected_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    content = pickle.dumps({b"data": CallsFunction(os.system, f"touch {trace}"), b"labels": LABELS}, protocol=2)
    path = write_official_pickle(content, tmp_path / "data", monkeypatch)
    assert get_load_error(tmp_path / "data") == (
        f"{path} is not a pickle of arrays: it refers to {os.system.__module__}.system, which is not needed for arrays"
    )
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()  # Python's pickle module runs the command


@pytest.mark.parametrize(
    ("payload", "forbidden_name"),
    [
        (CallsFunction(eval, "1 + 1"), "__builtin__.eval"),
        (CallsFunction(getattr, "text", "upper"), "__builtin__.getattr"),
        (CallsFunction(functools.partial, print), "functools.partial"),
        (CallsFunction(np.load, "file.npy"), "numpy.load"),
        (np.float64(1.0), "numpy."),  # the module of this type differs between versions of NumPy
        (Path("file"), "pathlib"),
        (CallsFunction(torch.load, "file.pt"), "torch.serialization.load"),
    ],
)
def test_names_that_arrays_do_not_need_are_rejected(
    payload: Any, forbidden_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_official_pickle(pickle.dumps({b"data": payload, b"labels": LABELS}, protocol=2), tmp_path, monkeypatch)
    message = get_load_error(tmp_path)
    assert message.startswith(f"{path} is not a pickle of arrays: it refers to {forbidden_name}")
    assert message.endswith(", which is not needed for arrays")


def test_attributes_of_allowed_names_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In protocol 4 a name can have dots. numpy.ndarray is allowed, numpy.ndarray.tofile is not.
    content = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    path = write_official_pickle(content, tmp_path, monkeypatch)
    assert get_load_error(tmp_path) == (
        f"{path} is not a pickle of arrays: it refers to numpy.ndarray.tofile, which is not needed for arrays"
    )


def test_other_encodings_of_bytes_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle_with_python3(ROWS, np.array(LABELS)).replace(b"\x06\x00\x00\x00latin1", b"\x06\x00\x00\x00rot_13")
    path = write_official_pickle(content, tmp_path, monkeypatch)
    assert get_load_error(tmp_path) == f"{path} is not a pickle of arrays: it refers to the encoding 'rot_13'"


def test_other_array_types_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle_with_python2(ROWS, np.array(LABELS)).replace(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n")
    path = write_official_pickle(content, tmp_path, monkeypatch)
    assert get_load_error(tmp_path) == f"{path} is not a pickle of arrays: it refers to an array of an unknown type"
