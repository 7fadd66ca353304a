from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.deploy.corruption_times import main
from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.runs.record import read_record
from tests.evaluation.corruptions.helpers import write_frost_photos


def test_every_corruption_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_frost_photos(tmp_path / "frost")
    record = tmp_path / "r.json"
    arguments = ["--images", "8", "--data-folder", str(tmp_path), "--record", str(record)]
    monkeypatch.setattr(sys, "argv", ["bench.deploy.corruption_times", *arguments])
    main()
    figures = read_record(record)["figures"]
    assert list(figures["each"]) == list(CORRUPTIONS)
    assert all(len(row["ms"]) == 5 for row in figures["each"].values())
    seconds = sum(ms for row in figures["each"].values() for ms in row["ms"]) / 1000 * 10_000
    assert figures["whole_s"] == pytest.approx(seconds)
