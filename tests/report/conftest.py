from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from tests.report.sample_records import ROOT, copy_records, make_cost_record, make_measurement_records


@pytest.fixture(scope="session")
def full_report_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a report of all sections, as HTML and Markdown, and its runs and records."""
    folder = tmp_path_factory.mktemp("report")
    runs = copy_records(folder)
    records = make_measurement_records(folder / "records", runs)
    make_cost_record(records / "cost.json")
    shutil.copy(ROOT / "paper" / "results" / "layers" / "layers.json", records)
    for name in ("report.html", "report.md"):
        arguments = [
            "report",
            *runs,
            "--records",
            str(records),
            "--data-folder",
            str(folder / "data"),
            "--title",
            "A <b> title",
        ]
        assert main([*arguments, "-o", str(folder / name)]) == 0
    return folder
