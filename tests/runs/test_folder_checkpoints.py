"""The checkpoints of a run: the number that is kept, and the one that a run is resumed from."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.runs.run_folder import NUM_KEPT_CHECKPOINTS, RunFolder
from tests.runs.helpers import list_names, make_checkpoint


def truncate_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_newest_checkpoints_are_kept(folder: RunFolder) -> None:
    steps = [0, 9, 10, 99, 999_999_999, 1_000_000_000]
    paths = [folder.save_checkpoint(step, make_checkpoint(step)) for step in steps]
    assert paths[1].name == "step-000000009.safetensors"
    assert folder.list_checkpoints() == paths[-NUM_KEPT_CHECKPOINTS:]
    assert folder.find_newest_checkpoint() == paths[-1]
    assert set(list_names(folder.checkpoints_folder)) == {path.name for path in paths[-NUM_KEPT_CHECKPOINTS:]}


def test_other_files_are_neither_listed_nor_removed(folder: RunFolder) -> None:
    other_files = ["best.safetensors", "step-000000001.safetensors.damaged", "step-000000001.txt", "step-2.safetensors"]
    for name in other_files:
        (folder.checkpoints_folder / name).write_text("x")
    paths = [folder.save_checkpoint(step, make_checkpoint(step)) for step in range(NUM_KEPT_CHECKPOINTS + 2)]
    assert folder.list_checkpoints() == paths[-NUM_KEPT_CHECKPOINTS:]
    assert set(other_files) < set(list_names(folder.checkpoints_folder))


def test_full_disk_removes_no_old_checkpoints(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [folder.save_checkpoint(step, make_checkpoint(step)) for step in range(NUM_KEPT_CHECKPOINTS)]

    def raise_disk_full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(OSError, match="No space left on device"):
        folder.save_checkpoint(NUM_KEPT_CHECKPOINTS, make_checkpoint(NUM_KEPT_CHECKPOINTS))
    assert folder.list_checkpoints() == paths
    assert list_names(folder.checkpoints_folder) == [path.name for path in paths]


def test_newest_checkpoint_is_used(folder: RunFolder) -> None:
    used_checkpoints: list[Checkpoint] = []
    assert folder.use_newest_valid_checkpoint(lambda checkpoint, path: used_checkpoints.append(checkpoint)) == (
        None,
        [],
    )
    for step in (5, 7):
        newest = folder.save_checkpoint(step, make_checkpoint(step))
    assert folder.use_newest_valid_checkpoint(lambda checkpoint, path: used_checkpoints.append(checkpoint)) == (
        newest,
        [],
    )
    assert [checkpoint.facts for checkpoint in used_checkpoints] == [{"step": 7}]
    folder.mark_newer_as_damaged(newest)
    assert len(folder.list_checkpoints()) == 2


def test_older_checkpoint_is_used_if_the_newest_is_damaged(folder: RunFolder) -> None:
    older, newer = folder.save_checkpoint(5, make_checkpoint(5)), folder.save_checkpoint(7, make_checkpoint(7))
    truncate_file(newer)
    used_checkpoints: list[Checkpoint] = []
    path, (problem,) = folder.use_newest_valid_checkpoint(lambda checkpoint, path: used_checkpoints.append(checkpoint))
    assert path == older
    np.testing.assert_array_equal(used_checkpoints[0].arrays["a"], [5, 5, 5])
    assert problem.startswith(f"the checkpoint {newer} is damaged: ")
    folder.mark_newer_as_damaged(older)
    assert list_names(folder.checkpoints_folder) == [older.name, newer.name + ".damaged"]
    assert folder.find_newest_checkpoint() == older
    assert (
        folder.save_checkpoint(6, make_checkpoint(6)) in folder.list_checkpoints()
    )  # a lower step than that of the damaged checkpoint


def test_older_checkpoint_is_used_if_the_newest_is_rejected(folder: RunFolder) -> None:
    older, newer = folder.save_checkpoint(5, make_checkpoint(5)), folder.save_checkpoint(7, make_checkpoint(7))

    def use(checkpoint: Checkpoint, path: Path) -> None:
        if path == newer:
            raise InputError("another network")

    assert folder.use_newest_valid_checkpoint(use) == (older, ["another network"])


def test_only_damaged_checkpoints_raise_an_error(folder: RunFolder) -> None:
    for step in (5, 7):
        path = folder.save_checkpoint(step, make_checkpoint(step))
        truncate_file(path)
    names_before = list_names(folder.checkpoints_folder)
    with pytest.raises(
        InputError,
        match=f"^the checkpoint {re.escape(str(path))} is damaged: .+; there is no valid checkpoint in "
        f"{re.escape(str(folder.checkpoints_folder))} to resume from$",
    ):
        folder.use_newest_valid_checkpoint(lambda checkpoint, path: None)
    assert list_names(folder.checkpoints_folder) == names_before
