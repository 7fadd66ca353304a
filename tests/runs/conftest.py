from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.runs.checkpoint import write_checkpoint
from lcrbnn.runs.folder import RunFolder
from tests.runs.helpers import SMALL


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    write_checkpoint(path, SMALL)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create({"lr": 0.1})
    return made
