"""CIFAR-10 from pickles that hold something else, or would run something."""

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

from tests.data.helpers import as_python2, as_python3, declare_official, pickled_files, put, random_parts
from tests.data.helpers import load_refusal as refusal


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
