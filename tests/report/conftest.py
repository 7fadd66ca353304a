from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lcrbnn.cli import main
from tests.report.made import ROOT, make_cost, make_records, make_runs


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a report that has every section, as a page and as Markdown, and what it was made from."""
    folder = tmp_path_factory.mktemp("report")
    runs = make_runs(folder)
    records = make_records(folder / "records", runs)
    make_cost(records / "cost.json")
    shutil.copy(ROOT / "results" / "layers" / "layers.json", records)
    for name in ("report.html", "report.md"):
        words = [
            "report",
            *runs,
            "--records",
            str(records),
            "--data-folder",
            str(folder / "data"),
            "--title",
            "A <b> title",
        ]
        assert main([*words, "-o", str(folder / name)]) == 0
    return folder
