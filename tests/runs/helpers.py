"""Small checkpoints and lines of a log, and how to compare what is read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.runs.log_line import COLUMNS
from lcrbnn.runs.record import DIGEST

ROOT = Path(__file__).parents[2]
SMALL = Checkpoint({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "ä/b": np.array(7)}, {"epoch": 3})


def same(one: Checkpoint, other: Checkpoint) -> None:
    assert one.facts == other.facts
    assert list(one.arrays) == list(other.arrays)
    for name, array in one.arrays.items():
        theirs = other.arrays[name]
        assert (array.dtype, array.shape) == (theirs.dtype, theirs.shape), name
        assert array.tobytes() == theirs.tobytes(), name  # bits: a NaN is kept as well


def numbered(step: int) -> Checkpoint:
    return Checkpoint({"a": np.full(3, step)}, {"step": step})


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def exactly(sentence: str) -> str:
    return f"^{re.escape(sentence)}$"


def write_without_digest(path: Path, record: dict[str, Any]) -> None:
    """Write a record as older versions did, without the digest of its content: a changed one is not refused for it."""
    path.write_text(json.dumps({name: value for name, value in record.items() if name != DIGEST}))


def line(epoch: int, **more: Any) -> dict[str, Any]:
    numbers = {"steps": 4 * epoch, "lr": 0.1, "weight": 0.0, "loss": 2.0, "train": 12.5, "seconds": 0.5}
    return {**dict.fromkeys(COLUMNS), "epoch": epoch, **numbers, **more}
