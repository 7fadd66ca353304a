"""The checkpoints of a run: which are kept, and which one is gone on from."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.runs.folder import KEPT, RunFolder
from tests.runs.helpers import names, numbered


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_the_newest_checkpoints_are_kept_and_listed_oldest_first(folder: RunFolder) -> None:
    steps = [0, 9, 10, 99, 999_999_999, 1_000_000_000]
    paths = [folder.save(step, numbered(step)) for step in steps]
    assert paths[1].name == "step-000000009.safetensors"
    assert folder.listed() == paths[-KEPT:]
    assert folder.newest() == paths[-1]
    assert set(names(folder.checkpoints)) == {path.name for path in paths[-KEPT:]}


def test_files_of_others_among_the_checkpoints_are_neither_listed_nor_removed(folder: RunFolder) -> None:
    foreign = ["best.safetensors", "step-000000001.safetensors.damaged", "step-000000001.txt", "step-2.safetensors"]
    for name in foreign:
        (folder.checkpoints / name).write_text("x")
    paths = [folder.save(step, numbered(step)) for step in range(KEPT + 2)]
    assert folder.listed() == paths[-KEPT:]
    assert set(foreign) < set(names(folder.checkpoints))


def test_a_checkpoint_that_the_disk_does_not_take_costs_none_of_the_old_ones(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [folder.save(step, numbered(step)) for step in range(KEPT)]

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        folder.save(KEPT, numbered(KEPT))
    assert folder.listed() == paths
    assert names(folder.checkpoints) == [path.name for path in paths]


def test_the_newest_checkpoint_is_found(folder: RunFolder) -> None:
    used: list[Checkpoint] = []
    assert folder.last_good(lambda checkpoint, path: used.append(checkpoint)) == (None, [])
    for step in (5, 7):
        newest = folder.save(step, numbered(step))
    assert folder.last_good(lambda checkpoint, path: used.append(checkpoint)) == (newest, [])
    assert [checkpoint.facts for checkpoint in used] == [{"step": 7}]
    folder.set_aside(newest)
    assert len(folder.listed()) == 2


def test_a_damaged_checkpoint_is_complained_about_and_the_one_before_it_found(folder: RunFolder) -> None:
    older, newer = folder.save(5, numbered(5)), folder.save(7, numbered(7))
    spoil(newer)
    used: list[Checkpoint] = []
    path, (complaint,) = folder.last_good(lambda checkpoint, path: used.append(checkpoint))
    assert path == older
    np.testing.assert_array_equal(used[0].arrays["a"], [5, 5, 5])
    assert complaint.startswith(f"the checkpoint {newer} is damaged: ")
    folder.set_aside(older)
    assert names(folder.checkpoints) == [older.name, newer.name + ".damaged"]
    assert folder.newest() == older
    assert folder.save(6, numbered(6)) in folder.listed()  # a lower number than the damaged one's


def test_a_checkpoint_that_does_not_fit_is_complained_about_too(folder: RunFolder) -> None:
    older, newer = folder.save(5, numbered(5)), folder.save(7, numbered(7))

    def use(checkpoint: Checkpoint, path: Path) -> None:
        if path == newer:
            raise InputError("another network")

    assert folder.last_good(use) == (older, ["another network"])


def test_only_damaged_checkpoints_are_an_error_and_none_is_lost(folder: RunFolder) -> None:
    for step in (5, 7):
        path = folder.save(step, numbered(step))
        spoil(path)
    before = names(folder.checkpoints)
    with pytest.raises(
        InputError,
        match=f"^the checkpoint {re.escape(str(path))} is damaged: .+; there is no good one in "
        f"{re.escape(str(folder.checkpoints))} to go on from$",
    ):
        folder.last_good(lambda checkpoint, path: None)
    assert names(folder.checkpoints) == before
