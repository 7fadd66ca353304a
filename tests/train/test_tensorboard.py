from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent

from lcrbnn.errors import InputError
from lcrbnn.train.tensorboard import TensorboardWriter, check_tensorboard_installed

CURVES = [
    "train_loss",
    "lcr_loss",
    "train_top1",
    "valid_top1",
    "valid_loss",
    "lr",
    "lcr_weight",
    "lcr_gradient_ratio",
]


def make_log_line(epoch: int, **changes: Any) -> dict[str, Any]:
    numbers = {name: (i + 1) / 7 * epoch for i, name in enumerate(CURVES)}
    return {
        "epoch": epoch,
        "steps": 10 * epoch,
        **numbers,
        "sigma_ratios": [0.5, 1.5 * epoch],
        "seconds": 3.5,
        **changes,
    }


def read_curves(folder: Path) -> dict[str, list[ScalarEvent]]:
    """Return the curves that TensorBoard reads from a folder."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: reader.Scalars(tag) for tag in reader.Tags()["scalars"]}


def list_points(events: list[ScalarEvent]) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events]


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    began = time.time()
    lines = [make_log_line(epoch) for epoch in (1, 2, 127, 128, 300, 70_000)]  # varints of one, two and three bytes
    file = TensorboardWriter(tmp_path / "tensorboard", lines[:2])
    for log_line in lines[2:]:
        file.add_log_line(log_line)
    read = read_curves(tmp_path / "tensorboard")
    assert set(read) == {*CURVES, "sigma_ratio/00", "sigma_ratio/01"}
    for name in CURVES:
        assert list_points(read[name]) == [(log_line["epoch"], float(np.float32(log_line[name]))) for log_line in lines]
    for i, name in enumerate(["sigma_ratio/00", "sigma_ratio/01"]):
        assert list_points(read[name]) == [(log_line["epoch"], log_line["sigma_ratios"][i]) for log_line in lines]
    assert all(began <= event.wall_time <= time.time() for event in read["train_loss"])


def test_values_that_an_epoch_did_not_measure_are_left_out(tmp_path: Path) -> None:
    TensorboardWriter(
        tmp_path,
        [
            make_log_line(1, lcr_loss=None, valid_top1=None, sigma_ratios=None),
            make_log_line(2, lcr_loss=0.0, sigma_ratios=[]),
        ],
    )
    read = read_curves(tmp_path)
    assert set(read) == set(CURVES)
    assert list_points(read["lcr_loss"]) == [(2, 0.0)]
    assert [event.step for event in read["valid_top1"]] == [2]
    assert [event.step for event in read["train_loss"]] == [1, 2]


def test_nan_and_infinity_are_written_as_such(tmp_path: Path) -> None:
    TensorboardWriter(tmp_path, [make_log_line(1, train_loss=float("inf"), lcr_loss=float("nan"))])
    read = read_curves(tmp_path)
    assert list_points(read["train_loss"]) == [(1, float("inf"))]
    assert np.isnan(read["lcr_loss"][0].value)


def test_a_second_start_writes_the_file_again_without_duplicates(tmp_path: Path) -> None:
    first = TensorboardWriter(tmp_path, [make_log_line(1), make_log_line(2)])
    first.add_log_line(make_log_line(3, train_loss=9.0))
    (tmp_path / "notes.txt").write_text("mine")
    second = TensorboardWriter(tmp_path, [make_log_line(1), make_log_line(2)])
    second.add_log_line(make_log_line(3))
    assert [path.name for path in tmp_path.iterdir() if "tfevents" not in path.name] == ["notes.txt"]
    assert len(list(tmp_path.iterdir())) == 2
    assert list_points(read_curves(tmp_path)["train_loss"]) == [
        (e, float(np.float32(make_log_line(e)["train_loss"]))) for e in (1, 2, 3)
    ]


def test_tensorboard_opens_the_file_of_a_run_without_epochs(tmp_path: Path) -> None:
    TensorboardWriter(tmp_path, [])
    assert read_curves(tmp_path) == {}
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert reader.file_version == 2.0


def test_a_file_instead_of_the_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tensorboard"
    path.write_text("mine")
    with pytest.raises(
        InputError, match=f"^TensorBoard's file cannot be written to {re.escape(str(path))}: File exists$"
    ):
        TensorboardWriter(path, [])
    assert path.read_text() == "mine"


def test_a_missing_package_is_reported_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=r"^--tensorboard needs the package tensorboard: pip install"):
        check_tensorboard_installed()
