from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.data import fetch
from tests.data.helpers import binary_files, declare_official, random_parts


@pytest.fixture
def _out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither source is there, until a test provides it; for the files about fetching alone, which ask for it."""
    monkeypatch.setattr(fetch, "ADDRESS", (tmp_path / "nowhere.tar.gz").as_uri())
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The six files that count as official, 20 images each."""
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    return files
