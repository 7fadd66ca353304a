from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.runs.checkpoint import write_checkpoint
from lcrbnn.runs.run_folder import RunFolder
from tests.runs.helpers import SMALL_CHECKPOINT


@pytest.fixture
def small_checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    write_checkpoint(path, SMALL_CHECKPOINT)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run_folder = RunFolder(tmp_path / "run")
    run_folder.create({"lr": 0.1})
    return run_folder
