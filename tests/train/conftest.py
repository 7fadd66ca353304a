from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.helpers import train_small_run


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run."""
    torch.set_num_threads(1)
    return train_small_run(tmp_path_factory.mktemp("runs") / "straight")
