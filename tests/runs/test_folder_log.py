"""The log of a run: incomplete, damaged and invalid lines, and truncation to a checkpoint."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.record import write_record
from lcrbnn.runs.run_folder import RunFolder
from tests.runs.helpers import make_log_line, match_exactly


def test_log_lines_are_synced_and_read_back_in_order(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced_sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced_sizes.append(os.fstat(handle).st_size))
    folder.append_log_line(make_log_line(1, train_loss=0.1))
    size_of_first_line = folder.log_file.stat().st_size
    folder.append_log_line(make_log_line(2, note="ü\nx"))
    assert folder.read_log() == [make_log_line(1, train_loss=0.1), make_log_line(2, note="ü\nx")]
    assert synced_sizes == [size_of_first_line, folder.log_file.stat().st_size]


def test_incomplete_last_line_is_ignored(folder: RunFolder) -> None:
    folder.append_log_line(make_log_line(1))
    complete_line = folder.log_file.read_bytes()
    for length in range(len(complete_line)):
        folder.log_file.write_bytes(complete_line + complete_line[:length])
        assert folder.read_log() == [make_log_line(1)]


@pytest.mark.parametrize("damaged_line", [b"", b'{"epoch": ', b"\xff\xfe", b"\0\0\0"])
def test_damaged_line_is_rejected_with_its_number(folder: RunFolder, damaged_line: bytes) -> None:
    folder.append_log_line(make_log_line(1))
    folder.log_file.write_bytes(
        folder.log_file.read_bytes() + damaged_line + b"\n" + json.dumps(make_log_line(3)).encode() + b"\n"
    )
    before = folder.log_file.read_bytes()
    for read_log in (folder.read_log, lambda: folder.truncate_log(1)):
        with pytest.raises(InputError, match=match_exactly(f"{folder.log_file} is damaged in line 2")):
            read_log()
    assert folder.log_file.read_bytes() == before


@pytest.mark.parametrize(
    "wrong_line",
    [
        b"3",
        b"null",
        b"[]",
        b"{}",
        *(json.dumps(content).encode() for content in ({"epoch": 2}, make_log_line(1), make_log_line(3))),
    ],
)
def test_json_that_is_no_log_line_is_rejected(folder: RunFolder, wrong_line: bytes) -> None:
    folder.append_log_line(make_log_line(1))
    folder.log_file.write_bytes(folder.log_file.read_bytes() + wrong_line + b"\n")
    with pytest.raises(InputError, match=match_exactly(f"{folder.log_file} is damaged in line 2")):
        folder.read_log()


@pytest.mark.parametrize(
    ("column", "values"),
    {
        "epoch": [True],
        "steps": [None, 0, -4, 1.5, "4", 10**30],
        "lr": [None, -0.1, float("nan"), "0.1", 10**400],
        "lcr_weight": [None, -1.0, float("nan"), float("inf")],
        "train_loss": [None, float("nan"), [1.0]],
        "lcr_loss": [float("inf"), "low"],
        "train_top1": [None, -1, 100.5, 905.0, False],
        "valid_top1": [-1, 101, "half"],
        "valid_loss": ["low", True],
        "valid_top5": [100.1, {}],
        "sigma_ratios": [{"1": 0.5}, 0.5, "0.5", [None], [[0.5]], [True]],
        "lcr_gradient_ratio": ["0.1", {}],
        "seconds": [None, -1.0, float("inf")],
        "data_time_fraction": [None, "0.1"],
    }.items(),
)
def test_invalid_value_is_rejected_with_its_column(folder: RunFolder, column: str, values: list[Any]) -> None:
    for value in values:
        folder.log_file.write_bytes(json.dumps({**make_log_line(1), column: value}).encode() + b"\n")
        with pytest.raises(InputError, match=rf"log\.jsonl is damaged in line 1: {column} must be .*; got "):
            folder.read_log()


def test_measured_columns_may_be_infinite(folder: RunFolder) -> None:
    columns = {
        "sigma_ratios": [1, float("inf")],
        "lcr_gradient_ratio": float("inf"),
        "valid_loss": float("inf"),
        "valid_top5": 99.5,
        "data_time_fraction": 0.1,
    }
    folder.append_log_line(make_log_line(1, lcr_loss=0.5, valid_top1=20, **columns))
    assert folder.read_log() == [make_log_line(1, lcr_loss=0.5, valid_top1=20, **columns)]


def test_missing_log_is_rejected(folder: RunFolder) -> None:
    folder.log_file.unlink()
    with pytest.raises(InputError, match=match_exactly(f"{folder.log_file} cannot be read: No such file or directory")):
        folder.read_log()


@pytest.mark.parametrize("epochs", [0, 2, 4])
def test_log_is_truncated_to_the_epochs_of_a_checkpoint(folder: RunFolder, epochs: int) -> None:
    for epoch in range(1, 5):
        folder.append_log_line(make_log_line(epoch, train_loss=epoch / 3))
    content = folder.log_file.read_bytes()
    folder.log_file.write_bytes(content + b'{"epoch": 5, "lo')
    remaining_lines = [make_log_line(epoch, train_loss=epoch / 3) for epoch in range(1, epochs + 1)]
    assert folder.truncate_log(epochs) == remaining_lines
    assert folder.read_log() == remaining_lines
    assert folder.log_file.read_bytes() == b"".join(content.splitlines(keepends=True)[:epochs])
    folder.append_log_line(make_log_line(epochs + 1))
    assert folder.read_log() == [*remaining_lines, make_log_line(epochs + 1)]


def test_log_shorter_than_its_checkpoint_is_rejected(folder: RunFolder) -> None:
    folder.append_log_line(make_log_line(1))
    with pytest.raises(
        InputError,
        match=match_exactly(
            f"{folder.log_file} ends after epoch 1, but the checkpoint is from epoch 2: restore the log"
        ),
    ):
        folder.truncate_log(2)
    assert folder.read_log() == [make_log_line(1)]


def test_log_longer_than_its_record_is_rejected(folder: RunFolder) -> None:
    write_record(folder.record_file, "run", {"lr": 0.1}, {"epochs": 1})
    folder.append_log_line(make_log_line(1))
    folder.check_record_and_log()
    folder.append_log_line(make_log_line(2))
    with pytest.raises(
        InputError, match=r"log\.jsonl ends after epoch 2, but .* is from a run of 1 epochs: restore the log"
    ):
        folder.check_record_and_log()
