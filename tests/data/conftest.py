from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.data import download as download
from tests.data.cifar10_files import make_binary_files, make_random_contents, set_official_md5s


@pytest.fixture
def _unreachable_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both download sources unreachable. A test can then provide one of them."""
    monkeypatch.setattr(download, "ARCHIVE_URL", (tmp_path / "nowhere.tar.gz").as_uri())
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def official_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Six files of 20 images each whose MD5s count as official."""
    files = make_binary_files(make_random_contents())
    set_official_md5s(files, monkeypatch)
    return files
