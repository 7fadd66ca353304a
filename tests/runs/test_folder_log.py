"""The log of a run: a line an epoch, torn by a kill, damaged, and cut to a checkpoint."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import write_record
from tests.runs.helpers import exactly, line


def test_lines_of_the_log_come_back_in_order_and_each_is_brought_to_the_disk(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    folder.append(line(1, loss=0.1))
    first = folder.log.stat().st_size
    folder.append(line(2, note="ü\nx"))
    assert folder.read_log() == [line(1, loss=0.1), line(2, note="ü\nx")]
    assert synced == [first, folder.log.stat().st_size]


def test_a_line_that_a_kill_tore_is_left_out_wherever_it_was_torn(folder: RunFolder) -> None:
    folder.append(line(1))
    whole = folder.log.read_bytes()
    for length in range(len(whole)):
        folder.log.write_bytes(whole + whole[:length])
        assert folder.read_log() == [line(1)]


@pytest.mark.parametrize("bad", [b"", b'{"epoch": ', b"\xff\xfe", b"\0\0\0"])
def test_a_damaged_line_amid_the_log_is_refused_with_its_number(folder: RunFolder, bad: bytes) -> None:
    folder.append(line(1))
    folder.log.write_bytes(folder.log.read_bytes() + bad + b"\n" + json.dumps(line(3)).encode() + b"\n")
    before = folder.log.read_bytes()
    for read in (folder.read_log, lambda: folder.cut_log(1)):
        with pytest.raises(InputError, match=exactly(f"{folder.log} is damaged in line 2")):
            read()
    assert folder.log.read_bytes() == before


@pytest.mark.parametrize(
    "bad", [b"3", b"null", b"[]", b"{}", *(json.dumps(one).encode() for one in ({"epoch": 2}, line(1), line(3)))]
)
def test_a_line_of_the_log_that_is_none_is_refused(folder: RunFolder, bad: bytes) -> None:
    folder.append(line(1))
    folder.log.write_bytes(folder.log.read_bytes() + bad + b"\n")
    with pytest.raises(InputError, match=exactly(f"{folder.log} is damaged in line 2")):
        folder.read_log()


@pytest.mark.parametrize(
    ("column", "values"),
    {
        "epoch": [True],
        "steps": [None, 0, -4, 1.5, "4", 10**30],
        "lr": [None, -0.1, float("nan"), "0.1", 10**400],
        "weight": [None, -1.0, float("nan"), float("inf")],
        "loss": [None, float("nan"), [1.0]],
        "lip": [float("inf"), "low"],
        "train": [None, -1, 100.5, 905.0, False],
        "valid": [-1, 101, "half"],
        "valid_loss": ["low", True],
        "valid_top5": [100.1, {}],
        "ratios": [{"1": 0.5}, 0.5, "0.5", [None], [[0.5]], [True]],
        "share": ["0.1", {}],
        "seconds": [None, -1.0, float("inf")],
        "wait": [None, "0.1"],
    }.items(),
)
def test_a_line_with_an_invalid_value_is_refused_and_names_the_column(
    folder: RunFolder, column: str, values: list[Any]
) -> None:
    for value in values:
        folder.log.write_bytes(json.dumps({**line(1), column: value}).encode() + b"\n")
        with pytest.raises(InputError, match=rf"log\.jsonl is damaged in line 1: {column} must be .*; got "):
            folder.read_log()


def test_numbers_that_training_does_not_depend_on_may_be_infinite(folder: RunFolder) -> None:
    more = {
        "ratios": [1, float("inf")],
        "share": float("inf"),
        "valid_loss": float("inf"),
        "valid_top5": 99.5,
        "wait": 0.1,
    }
    folder.append(line(1, lip=0.5, valid=20, **more))
    assert folder.read_log() == [line(1, lip=0.5, valid=20, **more)]


def test_a_log_that_is_not_there_is_refused(folder: RunFolder) -> None:
    folder.log.unlink()
    with pytest.raises(InputError, match=exactly(f"{folder.log} cannot be read: No such file or directory")):
        folder.read_log()


@pytest.mark.parametrize("epochs", [0, 2, 4])
def test_a_log_is_cut_to_the_epochs_that_a_checkpoint_counts_on(folder: RunFolder, epochs: int) -> None:
    for epoch in range(1, 5):
        folder.append(line(epoch, loss=epoch / 3))
    whole = folder.log.read_bytes()
    folder.log.write_bytes(whole + b'{"epoch": 5, "lo')
    kept = [line(epoch, loss=epoch / 3) for epoch in range(1, epochs + 1)]
    assert folder.cut_log(epochs) == kept
    assert folder.read_log() == kept
    assert folder.log.read_bytes() == b"".join(whole.splitlines(keepends=True)[:epochs])
    folder.append(line(epochs + 1))
    assert folder.read_log() == [*kept, line(epochs + 1)]


def test_a_log_that_is_too_short_for_its_checkpoint_is_refused(folder: RunFolder) -> None:
    folder.append(line(1))
    with pytest.raises(
        InputError,
        match=exactly(f"{folder.log} ends after epoch 1 and the checkpoint is from epoch 2: put the log back"),
    ):
        folder.cut_log(2)
    assert folder.read_log() == [line(1)]


def test_a_log_that_is_longer_than_its_record_says_is_refused(folder: RunFolder) -> None:
    write_record(folder.record, "run", {"lr": 0.1}, {"epochs": 1})
    folder.append(line(1))
    folder.check_finished()
    folder.append(line(2))
    with pytest.raises(InputError, match=r"log\.jsonl ends after epoch 2 and .* is of a run of 1 epochs: put the log"):
        folder.check_finished()
