from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent

from lcrbnn.errors import InputError
from lcrbnn.train.events import EventFile, masked_crc

CURVES = ["loss", "lip", "train", "valid", "valid_loss", "lr", "weight", "share"]


def line(epoch: int, **changes: Any) -> dict[str, Any]:
    numbers = {name: (i + 1) / 7 * epoch for i, name in enumerate(CURVES)}
    return {"epoch": epoch, "steps": 10 * epoch, **numbers, "ratios": [0.5, 1.5 * epoch], "seconds": 3.5, **changes}


def curves(folder: Path) -> dict[str, list[ScalarEvent]]:
    """What TensorBoard itself reads in a folder."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: reader.Scalars(tag) for tag in reader.Tags()["scalars"]}


def points(events: list[ScalarEvent]) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events]


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    began = time.time()
    lines = [line(epoch) for epoch in (1, 2, 127, 128, 300, 70_000)]  # of one, two and three bytes
    file = EventFile(tmp_path / "tensorboard", lines[:2])
    for one in lines[2:]:
        file.add(one)
    read = curves(tmp_path / "tensorboard")
    assert set(read) == {*CURVES, "ratio/00", "ratio/01"}
    for name in CURVES:
        assert points(read[name]) == [(one["epoch"], float(np.float32(one[name]))) for one in lines]
    for i, name in enumerate(["ratio/00", "ratio/01"]):
        assert points(read[name]) == [(one["epoch"], one["ratios"][i]) for one in lines]
    assert all(began <= event.wall_time <= time.time() for event in read["loss"])


def test_what_an_epoch_did_not_measure_is_left_out(tmp_path: Path) -> None:
    EventFile(tmp_path, [line(1, lip=None, valid=None, ratios=None), line(2, lip=0.0, ratios=[])])
    read = curves(tmp_path)
    assert set(read) == set(CURVES)
    assert points(read["lip"]) == [(2, 0.0)]
    assert [event.step for event in read["valid"]] == [2]
    assert [event.step for event in read["loss"]] == [1, 2]


def test_numbers_that_are_none_are_shown_as_such(tmp_path: Path) -> None:
    EventFile(tmp_path, [line(1, loss=float("inf"), lip=float("nan"))])
    read = curves(tmp_path)
    assert points(read["loss"]) == [(1, float("inf"))]
    assert np.isnan(read["lip"][0].value)


def test_a_second_start_makes_the_file_anew_and_leaves_no_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = EventFile(tmp_path, [line(1), line(2)])
    first.add(line(3, loss=9.0))
    (tmp_path / "notes.txt").write_text("mine")
    later = time.time() + 5
    monkeypatch.setattr(time, "time", lambda: later)  # another second, so another name
    second = EventFile(tmp_path, [line(1), line(2)])
    second.add(line(3))
    assert first.path != second.path
    assert {path.name for path in tmp_path.iterdir()} == {second.path.name, "notes.txt"}
    assert points(curves(tmp_path)["loss"]) == [(e, float(np.float32(line(e)["loss"]))) for e in (1, 2, 3)]


def test_a_run_with_no_epoch_yet_is_a_file_that_tensorboard_opens(tmp_path: Path) -> None:
    EventFile(tmp_path, [])
    assert curves(tmp_path) == {}
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert reader.file_version == 2.0


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and those below: RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_checksum_is_a_rotated_crc_32c(data: bytes, crc: int) -> None:
    rotated = masked_crc(data) - 0xA282EAD8 & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc


def test_a_file_in_the_place_of_the_folder_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tensorboard"
    path.write_text("mine")
    with pytest.raises(
        InputError, match=f"^TensorBoard's file cannot be written to {re.escape(str(path))}: File exists$"
    ):
        EventFile(path, [])
    assert path.read_text() == "mine"
