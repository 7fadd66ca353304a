"""Signals, full disks, locked folders: a run ends with one sentence, and nothing is lost."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.errors import InputError, RunFailed, StopSignal
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.runs.stop_request import RESUME_HINT, StopRequest
from lcrbnn.train.distributed.ranks import ProcessLost
from lcrbnn.train.loop import TrainingLoop
from lcrbnn.train.train import train_parallel
from tests.train.helpers import (
    SAVE_EVERY_STEP,
    SMALL,
    Crash,
    assert_same_runs,
    crash_after,
    make_command,
    make_environment,
    make_silent_progress,
    read_log_without_times,
    train_small_run,
)


def test_a_stop_during_validation_saves_and_the_epoch_is_finished_later(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcrbnn.train import loop

    def raise_stop_signal(*args: Any) -> None:
        raise StopSignal("asked", signal.SIGTERM)

    with monkeypatch.context() as broken:
        broken.setattr(loop, "compute_accuracy", raise_stop_signal)
        with pytest.raises(StopSignal):
            train_small_run(tmp_path / "run", options=replace(SAVE_EVERY_STEP, checkpoint_interval_s=1000.0))
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is not None
    assert newest.name == "step-000000004.safetensors"
    assert read_log_without_times(tmp_path / "run") == []
    train_small_run(tmp_path / "run", resume=True)
    assert_same_runs(straight, tmp_path / "run")


def test_a_signal_that_comes_too_late_for_one_run_keeps_the_next_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcrbnn.train import train as run

    original = run.write_record

    def write(*args: Any) -> None:
        original(*args)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run, "write_record", write)
    with pytest.raises(StopSignal, match="stopped by SIGTERM"):
        train_small_run(tmp_path / "run")
    assert (tmp_path / "run" / "record.json").exists()


def test_a_second_interrupt_does_not_wait() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # the step still runs to its end
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(StopSignal, match="stopped by SIGTERM"):
            stop.raise_if_requested()


def test_stopping_parallel_runs_saves_each_that_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = TrainingLoop.save_checkpoint

    def save(self: TrainingLoop) -> None:
        if self.folder.path.name == "a":
            raise RunFailed("the disk of a is full")
        original(self)

    def one(self: TrainingLoop) -> None:
        step(self)
        if self.folder.path.name == "b" and self.steps_done == 2:
            signal.raise_signal(signal.SIGTERM)

    step = TrainingLoop._run_step
    monkeypatch.setattr(TrainingLoop, "save_checkpoint", save)
    monkeypatch.setattr(TrainingLoop, "_run_step", one)
    jobs = {tmp_path / name: SMALL for name in "abc"}
    with pytest.raises(
        StopSignal,
        match=r"stopped by SIGTERM and saved; .*; the disk of a is full",
    ):
        train_parallel(jobs, replace(SAVE_EVERY_STEP, checkpoint_interval_s=1000.0), progress=make_silent_progress)
    assert [len(RunFolder(tmp_path / name).list_checkpoints()) for name in "abc"] == [0, 1, 1]


def restore_hangup_handler() -> None:
    """Undo nohup, under which these tests may run: a run that starts with SIGHUP ignored keeps ignoring it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_saves_and_ends_the_run(name: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = subprocess.Popen(
        make_command(path, "--epochs", "300"),
        env=make_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=restore_hangup_handler,
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("epoch 2/300"):
        assert process.poll() is None
    process.send_signal(getattr(signal, name))
    _, output_text = process.communicate(timeout=60)
    assert process.returncode == code
    assert output_text.splitlines()[-1] == f"lcrbnn: stopped by {name} and saved; {RESUME_HINT}"
    assert not (path / "record.json").exists()
    assert RunFolder(path).use_newest_valid_checkpoint(lambda checkpoint, path: None)[0] is not None


def test_a_closed_terminal_saves_and_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:  # the session leader of this terminal, like a shell whose connection is lost
        restore_hangup_handler()
        os.execvpe(
            sys.executable, make_command(path, "--epochs", "300", "--checkpoint-interval", "1000"), make_environment()
        )
    while b"epoch 3" not in os.read(terminal, 4096):
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
    assert not (path / "record.json").exists()
    assert RunFolder(path).use_newest_valid_checkpoint(lambda checkpoint, path: None)[0] is not None


def test_a_run_under_nohup_ignores_a_closed_terminal(tmp_path: Path) -> None:
    path = tmp_path / "run"
    words = ["nohup", *make_command(path, "--epochs", "300", "--checkpoint-interval", "1000")]
    process = subprocess.Popen(
        words, env=make_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    for epoch in (2, 5):
        while not process.stderr.readline().startswith(f"epoch {epoch}/300"):
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
    assert RunFolder(path).find_newest_checkpoint() is None
    process.send_signal(signal.SIGTERM)
    _, output_text = process.communicate(timeout=60)
    assert process.returncode == 143
    assert output_text.splitlines()[-1] == f"lcrbnn: stopped by SIGTERM and saved; {RESUME_HINT}"


def test_a_process_that_ends_on_a_signal_before_this_one_is_not_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(self: TrainingLoop) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise ProcessLost("another process of this run has ended or cannot be reached (connection closed)")

    monkeypatch.setattr(TrainingLoop, "_run_step", one)
    with pytest.raises(StopSignal, match=r"^stopped by SIGTERM, without a new checkpoint: ") as stopped:
        train_small_run(tmp_path / "run")
    assert stopped.value.signal_number == signal.SIGTERM
    assert "reached" not in str(stopped.value)
    assert RunFolder(tmp_path / "run").find_newest_checkpoint() is None


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the file size simulates the full disk: checkpoints fit until the limit is lower."""
    path = tmp_path / "run"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from lcrbnn.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    with monkeypatch.context() as broken:
        crash_after(broken, 3)
        with pytest.raises(Crash):
            train_small_run(path)
    words = [sys.executable, "-c", limited, *make_command(path, "--epochs", "2", "--resume")[3:]]
    result = subprocess.run(words, env=make_environment(), capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 1
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"lcrbnn: a checkpoint cannot be written to {path}: File too large; the checkpoint ")
    assert message.endswith("step-000000002.safetensors is kept")
    assert not list(path.rglob("*.part"))
    train_small_run(path, resume=True)
    assert_same_runs(straight, path)


def test_a_log_write_error_ends_the_run_in_one_sentence(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RunFolder, line: dict[str, Any]) -> None:
        with self.log_file.open("ab") as file:
            file.write(b'{"epoch": 1, "st')  # the disk is full after this part
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "append_log_line", full)
        with pytest.raises(
            RunFailed, match=r"the log cannot be written to .*: No space left on device; the checkpoint .* is kept"
        ):
            train_small_run(tmp_path / "run")
    train_small_run(tmp_path / "run", resume=True)
    assert_same_runs(straight, tmp_path / "run")


def test_a_second_process_cannot_write_the_same_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        result = subprocess.run(
            make_command(tmp_path / "run", "--epochs", "1"),
            env=make_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert (
        result.stderr == f"lcrbnn: another process is writing the run in {tmp_path / 'run'}; wait for it or stop it\n"
    )
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_run_that_another_process_starts_meanwhile_is_left_alone(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building takes seconds, so only the check under the lock is decisive."""
    import shutil

    from lcrbnn.train import train as run

    original = run._make_contexts

    def slow(*args: Any) -> Any:
        shutil.copytree(straight, tmp_path / "run")
        return original(*args)

    monkeypatch.setattr(run, "_make_contexts", slow)
    with pytest.raises(InputError, match=r"there is a run in .* already"):
        train_small_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    train_small_run(tmp_path / "run", resume=True)
    before, after = ((p / "record.json").read_bytes() for p in (straight, tmp_path / "run"))
    assert before == after
