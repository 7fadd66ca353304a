from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lcrbnn.errors import InputError
from lcrbnn.runs import files
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import Spec
from lcrbnn.train.run import train
from tests.train.helpers import (
    OFTEN,
    ROOT,
    SMALL,
    Crash,
    assert_same,
    crash_after,
    environment,
    log,
    small_run,
)


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_crash_after_any_step_resumes_to_the_same_bits(
    steps: int, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, steps)
        with pytest.raises(Crash):
            small_run(tmp_path / "run")
    small_run(tmp_path / "run", resume=True)
    assert_same(straight, tmp_path / "run")


def test_a_crash_at_any_sync_of_the_disk_resumes_to_the_same_bits(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.fsync
    for point in itertools.count(1):
        counter = itertools.count(1)

        def fsync(handle: int, counter: Iterator[int] = counter, point: int = point) -> None:
            if next(counter) == point:
                raise Crash
            whole(handle)

        path = tmp_path / str(point)
        with monkeypatch.context() as broken:
            broken.setattr(
                files.Path, "unlink", lambda self, missing_ok=False: None
            )  # a dead process cleans up nothing
            broken.setattr(os, "fsync", fsync)
            try:
                small_run(path)
                break
            except Crash:
                pass
        small_run(path, resume=True)
        assert_same(straight, path)
        assert not list(path.rglob("*.part"))
    assert point > 20


def test_rbnn_turns_its_rotations_once_an_epoch_however_often_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SMALL.but(method="rbnn", weight=1.0)
    small_run(tmp_path / "straight", spec)
    for steps in (1, 2, 1):
        with monkeypatch.context() as broken:
            crash_after(broken, steps)
            with pytest.raises(Crash):
                small_run(tmp_path / "run", spec, resume=True)
    small_run(tmp_path / "run", spec, resume=True)
    assert_same(tmp_path / "straight", tmp_path / "run")


def assert_resumes(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the second epoch, to the bits of a run that was left alone."""
    small_run(tmp_path / "straight", spec)
    with monkeypatch.context() as broken:
        crash_after(broken, 5)
        with pytest.raises(Crash):
            small_run(tmp_path / "run", spec)
    small_run(tmp_path / "run", spec, resume=True)
    assert_same(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "lr": 1e-3},
        {"augment": "crop-flip", "schedule": "linear", "pace": "step", "warmup": 1.0},
        {"form": "default", "weight": 4.0, "ramp": 1.0, "precision": "bfloat16"},
        {"share": 0.1, "form_options": ["last=1"]},
        {"images": "all", "method": "xnor", "label_smoothing": 0.1, "nesterov": True, "drop_last": True},
    ],
    ids=["adam", "augmented", "retention", "share", "all images"],
)
def test_every_kind_of_state_survives(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SMALL.but(**changes)
    assert_resumes(spec, tmp_path, monkeypatch)


def test_learned_factors_of_the_loss_survive_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run(tmp_path / "teacher", SMALL.but(method="real", epochs=1))
    spec = SMALL.but(form="official", weight=1e4, teacher=str(tmp_path / "teacher"))
    assert_resumes(spec, tmp_path, monkeypatch)


def test_a_finished_run_is_left_alone(straight: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.rglob("*")}
    small_run(straight, resume=True)
    assert {p: p.stat().st_mtime_ns for p in straight.rglob("*")} == before


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_taken(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, 7)
        with pytest.raises(Crash):
            small_run(tmp_path / "run")
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    train(SMALL, tmp_path / "run", OFTEN, resume=True)
    said = capsys.readouterr().err
    assert f"the checkpoint {newest} is damaged: the checksum of" in said
    assert "going on from the one before it" in said
    assert_same(straight, tmp_path / "run")
    assert newest.with_name(newest.name + ".damaged").exists()


def test_a_checkpoint_of_another_network_or_run_is_refused_and_an_older_own_one_taken(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = RunFolder(straight).newest()
    assert theirs is not None
    for name, changes, reason in (
        ("network", {"method": "xnor"}, r"is of another network: it has layer1.0.conv1.* besides; .*, and \d+ more"),
        ("run", {"seed": 1}, r"is of a run with other settings than spec\.json has"),
    ):
        spec = SMALL.but(**changes)
        path = small_run(tmp_path / name, spec)
        small_run(tmp_path / f"{name}-alone", spec)
        (path / "record.json").unlink()
        newest = RunFolder(path).newest()
        assert newest is not None
        newest.write_bytes(theirs.read_bytes())
        train(spec, path, OFTEN, resume=True)
        assert re.search(reason, capsys.readouterr().err)
        assert_same(tmp_path / f"{name}-alone", path)
        (path / "record.json").unlink()
        for one in RunFolder(path).listed():
            one.write_bytes(theirs.read_bytes())
        kept = (path / "log.jsonl").read_bytes()
        with pytest.raises(InputError, match=reason + r".*; there is no good one in"):
            small_run(path, spec, resume=True)
        assert (path / "log.jsonl").read_bytes() == kept


def test_a_run_without_a_checkpoint_yet_is_made_again_and_says_so(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seldom = replace(OFTEN, save_seconds=1000.0)
    with monkeypatch.context() as broken:
        crash_after(broken, 5)
        with pytest.raises(Crash):
            small_run(tmp_path / "run", options=seldom)
    assert len(log(tmp_path / "run")) == 1
    train(SMALL, tmp_path / "run", seldom, resume=True)
    assert "no checkpoint was saved yet in" in capsys.readouterr().err
    assert_same(straight, tmp_path / "run")


def test_a_run_that_made_nothing_starts_anew_as_it_was_or_otherwise(tmp_path: Path, straight: Path) -> None:
    for resume in (False, True):
        folder = RunFolder(tmp_path / str(resume))
        folder.create(SMALL.but(batch=100).stored())
        folder.write_broken({"gone": "it is empty"})
        assert folder.untouched()
        small_run(folder.path, resume=resume)
        assert folder.read_broken() is None
        assert not folder.untouched()
        ends = [one.newest() for one in (folder, RunFolder(straight))]
        assert len({end.read_bytes() for end in ends if end is not None}) == 1
    shutil.copytree(straight, tmp_path / "more")
    for name in ("record.json", "log.jsonl"):  # a checkpoint is enough to be kept
        (tmp_path / "more" / name).unlink()
    assert not RunFolder(tmp_path / "more").untouched()


def test_a_run_goes_on_as_it_began_or_not_at_all(straight: Path) -> None:
    with pytest.raises(InputError, match="has batch 300 and now it is 100: a run goes on as it began"):
        small_run(straight, SMALL.but(batch=100), resume=True)
    with pytest.raises(InputError, match="has weight 0 and now it is 1: "):
        small_run(straight, SMALL.but(weight=1.0), resume=True)
    with pytest.raises(InputError, match="has seed 0 and now it is 3: "):
        small_run(straight, SMALL.but(seed=3), resume=True)
    with pytest.raises(InputError, match=r"there is a run in .* already: --resume goes on with it"):
        small_run(straight)


def test_another_number_of_threads_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, 2)
        with pytest.raises(Crash):
            small_run(tmp_path / "run")
    torch.set_num_threads(2)
    train(SMALL, tmp_path / "run", OFTEN, resume=True)
    assert (
        "it was made with EagerStep on 1 threads and goes on with EagerStep on 2 threads: the last bits will differ"
        in capsys.readouterr().err
    )


def test_real_kills_of_a_real_process_leave_the_same_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.kill", "--small", "--kills", "3", "--inside", "0"]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills" in done.stdout
    assert "equal, bit for bit" in done.stdout
