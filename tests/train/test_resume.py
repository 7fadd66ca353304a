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
from lcrbnn.runs import atomic_files as files
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train
from tests.train.helpers import (
    ROOT,
    SAVE_EVERY_STEP,
    SMALL,
    Crash,
    assert_same_runs,
    crash_after,
    make_environment,
    read_log_without_times,
    train_small_run,
)


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_crash_after_any_step_resumes_to_the_same_bits(
    steps: int, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, steps)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run")
    train_small_run(tmp_path / "run", resume=True)
    assert_same_runs(straight, tmp_path / "run")


def test_a_crash_at_any_fsync_resumes_to_the_same_bits(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.fsync
    for point in itertools.count(1):
        counter = itertools.count(1)

        def fsync(handle: int, counter: Iterator[int] = counter, point: int = point) -> None:
            if next(counter) == point:
                raise Crash
            original(handle)

        path = tmp_path / str(point)
        with monkeypatch.context() as broken:
            broken.setattr(
                files.Path, "unlink", lambda self, missing_ok=False: None
            )  # a killed process does not clean up
            broken.setattr(os, "fsync", fsync)
            try:
                train_small_run(path)
                break
            except Crash:
                pass
        train_small_run(path, resume=True)
        assert_same_runs(straight, path)
        assert not list(path.rglob("*.part"))
    assert point > 20


def test_rbnn_updates_its_rotations_once_per_epoch_even_if_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SMALL.replace(method="rbnn", lcr_weight=1.0)
    train_small_run(tmp_path / "straight", spec)
    for steps in (1, 2, 1):
        with monkeypatch.context() as broken:
            crash_after(broken, steps)
            with pytest.raises(Crash):
                train_small_run(tmp_path / "run", spec, resume=True)
    train_small_run(tmp_path / "run", spec, resume=True)
    assert_same_runs(tmp_path / "straight", tmp_path / "run")


def assert_resumes(spec: TrainSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash in the second epoch, resume, and compare with an uninterrupted run bit by bit."""
    train_small_run(tmp_path / "straight", spec)
    with monkeypatch.context() as broken:
        crash_after(broken, 5)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run", spec)
    train_small_run(tmp_path / "run", spec, resume=True)
    assert_same_runs(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "lr": 1e-3},
        {"augmentation": "crop-flip", "lr_schedule": "linear", "lr_update_interval": "step", "lr_warmup_epochs": 1.0},
        {"lcr_variant": "default", "lcr_weight": 4.0, "lcr_warmup_epochs": 1.0, "precision": "bfloat16"},
        {"lcr_gradient_ratio": 0.1, "lcr_options": ["num_last_matrices=1"]},
        {"train_split": "train+valid", "method": "xnor", "label_smoothing": 0.1, "nesterov": True, "drop_last": True},
    ],
    ids=["adam", "augmented", "retention", "share", "all images"],
)
def test_every_kind_of_state_survives_a_crash(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SMALL.replace(**changes)
    assert_resumes(spec, tmp_path, monkeypatch)


def test_learnable_scales_of_the_loss_survive_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_small_run(tmp_path / "teacher", SMALL.replace(method="real", epochs=1))
    spec = SMALL.replace(lcr_variant="official", lcr_weight=1e4, teacher=str(tmp_path / "teacher"))
    assert_resumes(spec, tmp_path, monkeypatch)


def test_a_finished_run_is_left_alone(straight: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.rglob("*")}
    train_small_run(straight, resume=True)
    assert {p: p.stat().st_mtime_ns for p in straight.rglob("*")} == before


def test_a_damaged_checkpoint_is_renamed_and_the_one_before_it_used(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, 7)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run")
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is not None
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    train(SMALL, tmp_path / "run", SAVE_EVERY_STEP, resume=True)
    error_text = capsys.readouterr().err
    assert f"the checkpoint {newest} is damaged: the checksum of" in error_text
    assert "resuming from the checkpoint before it" in error_text
    assert_same_runs(straight, tmp_path / "run")
    assert newest.with_name(newest.name + ".damaged").exists()


def test_a_checkpoint_of_another_network_or_run_is_rejected_and_an_older_valid_one_used(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight_checkpoint = RunFolder(straight).find_newest_checkpoint()
    assert straight_checkpoint is not None
    for name, changes, reason in (
        (
            "network",
            {"method": "xnor"},
            r"belongs to another network: it has the extra array layer1.0.conv1.*; .*, and \d+ more",
        ),
        ("run", {"seed": 1}, r"belongs to a run with other settings than those in spec\.json"),
    ):
        spec = SMALL.replace(**changes)
        path = train_small_run(tmp_path / name, spec)
        train_small_run(tmp_path / f"{name}-alone", spec)
        (path / "record.json").unlink()
        newest = RunFolder(path).find_newest_checkpoint()
        assert newest is not None
        newest.write_bytes(straight_checkpoint.read_bytes())
        train(spec, path, SAVE_EVERY_STEP, resume=True)
        assert re.search(reason, capsys.readouterr().err)
        assert_same_runs(tmp_path / f"{name}-alone", path)
        (path / "record.json").unlink()
        for checkpoint in RunFolder(path).list_checkpoints():
            checkpoint.write_bytes(straight_checkpoint.read_bytes())
        log_bytes = (path / "log.jsonl").read_bytes()
        with pytest.raises(InputError, match=reason + r".*; there is no valid checkpoint in"):
            train_small_run(path, spec, resume=True)
        assert (path / "log.jsonl").read_bytes() == log_bytes


def test_a_run_without_a_checkpoint_is_repeated_with_a_message(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seldom = replace(SAVE_EVERY_STEP, checkpoint_interval_s=1000.0)
    with monkeypatch.context() as broken:
        crash_after(broken, 5)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run", options=seldom)
    assert len(read_log_without_times(tmp_path / "run")) == 1
    train(SMALL, tmp_path / "run", seldom, resume=True)
    assert "no checkpoint was saved yet in" in capsys.readouterr().err
    assert_same_runs(straight, tmp_path / "run")


def test_a_run_without_output_can_be_started_again_with_any_settings(tmp_path: Path, straight: Path) -> None:
    for resume in (False, True):
        folder = RunFolder(tmp_path / str(resume))
        folder.create(SMALL.replace(batch_size=100).to_dict())
        folder.write_broken_images({"gone": "it is empty"})
        assert folder.has_no_output()
        train_small_run(folder.path, resume=resume)
        assert folder.read_broken_images() is None
        assert not folder.has_no_output()
        ends = [f.find_newest_checkpoint() for f in (folder, RunFolder(straight))]
        assert len({end.read_bytes() for end in ends if end is not None}) == 1
    shutil.copytree(straight, tmp_path / "more")
    for name in ("record.json", "log.jsonl"):  # a checkpoint alone is output worth keeping
        (tmp_path / "more" / name).unlink()
    assert not RunFolder(tmp_path / "more").has_no_output()


def test_a_run_resumes_only_with_the_same_settings(straight: Path) -> None:
    with pytest.raises(InputError, match="has batch_size 300, and now it is 100: a run can only be resumed"):
        train_small_run(straight, SMALL.replace(batch_size=100), resume=True)
    with pytest.raises(InputError, match="has lcr_weight 0, and now it is 1: "):
        train_small_run(straight, SMALL.replace(lcr_weight=1.0), resume=True)
    with pytest.raises(InputError, match="has seed 0, and now it is 3: "):
        train_small_run(straight, SMALL.replace(seed=3), resume=True)
    with pytest.raises(InputError, match=r"there is a run in .* already: add --resume to continue it"):
        train_small_run(straight)


def test_another_number_of_threads_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, 2)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run")
    torch.set_num_threads(2)
    train(SMALL, tmp_path / "run", SAVE_EVERY_STEP, resume=True)
    message = "the run was trained with EagerStep on 1 threads and resumes with EagerStep on 2 threads: "
    assert f"{message}the last bits will differ" in capsys.readouterr().err


def test_real_kills_of_a_real_process_leave_the_same_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.kill_and_resume", "--small", "--kills", "3", "--inside", "0"]
    result = subprocess.run(
        words, cwd=ROOT, env=make_environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kills" in result.stdout
    assert "equal, bit for bit" in result.stdout
