"""Small checkpoints, log lines, and comparisons with the files that are read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.runs.log_line import COLUMNS
from lcrbnn.runs.record import DIGEST_KEY

ROOT = Path(__file__).parents[2]
SMALL_CHECKPOINT = Checkpoint({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "ä/b": np.array(7)}, {"epoch": 3})


def assert_same_checkpoint(actual: Checkpoint, expected: Checkpoint) -> None:
    assert actual.facts == expected.facts
    assert list(actual.arrays) == list(expected.arrays)
    for name, array in actual.arrays.items():
        expected_array = expected.arrays[name]
        assert (array.dtype, array.shape) == (expected_array.dtype, expected_array.shape), name
        assert array.tobytes() == expected_array.tobytes(), name  # compares bits, because NaN is not equal to NaN


def make_checkpoint(step: int) -> Checkpoint:
    return Checkpoint({"a": np.full(3, step)}, {"step": step})


def list_names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def match_exactly(sentence: str) -> str:
    return f"^{re.escape(sentence)}$"


def write_without_digest(path: Path, record: dict[str, Any]) -> None:
    """Write a record like older versions, without the digest of its content, so that changed content is accepted."""
    path.write_text(json.dumps({name: value for name, value in record.items() if name != DIGEST_KEY}))


def make_log_line(epoch: int, **columns: Any) -> dict[str, Any]:
    values = {"steps": 4 * epoch, "lr": 0.1, "lcr_weight": 0.0, "train_loss": 2.0, "train_top1": 12.5, "seconds": 0.5}
    return {**dict.fromkeys(COLUMNS), "epoch": epoch, **values, **columns}
