from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.corruptions import main
from lcrbnn.corrupt.table import CORRUPTIONS
from lcrbnn.runs.record import read_record
from tests.corrupt.helpers import put_photos


def test_every_corruption_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_photos(tmp_path / "frost")
    record = tmp_path / "r.json"
    words = ["--images", "8", "--data-folder", str(tmp_path), "--record", str(record)]
    monkeypatch.setattr(sys, "argv", ["bench.corruptions", *words])
    main()
    figures = read_record(record)["figures"]
    assert list(figures["each"]) == list(CORRUPTIONS)
    assert all(len(row["ms"]) == 5 for row in figures["each"].values())
    seconds = sum(ms for row in figures["each"].values() for ms in row["ms"]) / 1000 * 10_000
    assert figures["whole_s"] == pytest.approx(seconds)
