"""Signals, full disks, folders in use: a run ends in order, and nothing is lost."""

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

from lcrbnn.errors import Failed, InputError, Stopped
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.loop import Loop
from lcrbnn.train.ranks import Lost
from lcrbnn.train.run import train_together
from lcrbnn.train.signals import GOING_ON, StopRequest
from tests.train.helpers import (
    OFTEN,
    SMALL,
    Crash,
    assert_same,
    command,
    crash_after,
    environment,
    log,
    quiet,
    small_run,
)


def test_a_stop_during_validation_saves_and_the_epoch_is_closed_later(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcrbnn.train import loop

    def stopped(*args: Any) -> None:
        raise Stopped("asked", signal.SIGTERM)

    with monkeypatch.context() as broken:
        broken.setattr(loop, "accuracy", stopped)
        with pytest.raises(Stopped):
            small_run(tmp_path / "run", options=replace(OFTEN, save_seconds=1000.0))
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    assert newest.name == "step-000000004.safetensors"
    assert log(tmp_path / "run") == []
    small_run(tmp_path / "run", resume=True)
    assert_same(straight, tmp_path / "run")


def test_a_signal_that_comes_too_late_for_one_run_keeps_the_next_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcrbnn.train import run

    whole = run.write_record

    def write(*args: Any) -> None:
        whole(*args)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run, "write_record", write)
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        small_run(tmp_path / "run")
    assert (tmp_path / "run" / "record.json").exists()


def test_a_second_interrupt_does_not_wait() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # still waits for the step to end
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped, match="stopped by SIGTERM"):
            stop.check()


def test_stopping_several_runs_saves_each_that_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Loop.save

    def save(self: Loop) -> None:
        if self.folder.path.name == "a":
            raise Failed("the disk of a is full")
        whole(self)

    def one(self: Loop) -> None:
        step(self)
        if self.folder.path.name == "b" and self.done == 2:
            signal.raise_signal(signal.SIGTERM)

    step = Loop._one
    monkeypatch.setattr(Loop, "save", save)
    monkeypatch.setattr(Loop, "_one", one)
    jobs = {tmp_path / name: SMALL for name in "abc"}
    with pytest.raises(
        Stopped,
        match=r"stopped by SIGTERM and saved; .*; the disk of a is full",
    ):
        train_together(jobs, replace(OFTEN, save_seconds=1000.0), progress=quiet)
    assert [len(RunFolder(tmp_path / name).listed()) for name in "abc"] == [0, 1, 1]


def heed_hangup() -> None:
    """Undo nohup, under which these tests may run: a run that starts with SIGHUP ignored goes on ignoring it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_saves_and_ends_the_run(name: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = subprocess.Popen(
        command(path, "--epochs", "300"),
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_hangup,
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("epoch 2/300"):
        assert process.poll() is None
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.splitlines()[-1] == f"lcrbnn: stopped by {name} and saved; {GOING_ON}"
    assert not (path / "record.json").exists()
    assert RunFolder(path).last_good(lambda checkpoint, path: None)[0] is not None


def test_a_closed_terminal_saves_and_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:  # the leader of a session whose terminal this is, as a shell is that a lost connection leaves
        heed_hangup()
        os.execvpe(sys.executable, command(path, "--epochs", "300", "--save-seconds", "1000"), environment())
    while b"epoch 3" not in os.read(terminal, 4096):
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
    assert not (path / "record.json").exists()
    assert RunFolder(path).last_good(lambda checkpoint, path: None)[0] is not None


def test_nohup_keeps_a_run_from_hearing_of_a_closed_terminal(tmp_path: Path) -> None:
    path = tmp_path / "run"
    words = ["nohup", *command(path, "--epochs", "300", "--save-seconds", "1000")]
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for epoch in (2, 5):
        while not process.stderr.readline().startswith(f"epoch {epoch}/300"):
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
    assert RunFolder(path).newest() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert said.splitlines()[-1] == f"lcrbnn: stopped by SIGTERM and saved; {GOING_ON}"


def test_a_process_that_ends_on_a_signal_before_this_one_is_not_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(self: Loop) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise Lost("another process of this run has ended or cannot be reached (connection closed)")

    monkeypatch.setattr(Loop, "_one", one)
    with pytest.raises(Stopped, match=r"^stopped by SIGTERM, without a new checkpoint: ") as stopped:
        small_run(tmp_path / "run")
    assert stopped.value.number == signal.SIGTERM
    assert "reached" not in str(stopped.value)
    assert RunFolder(tmp_path / "run").newest() is None


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files stands in for the disk: the checkpoints fit until it is set lower."""
    path = tmp_path / "run"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from lcrbnn.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    with monkeypatch.context() as broken:
        crash_after(broken, 3)
        with pytest.raises(Crash):
            small_run(path)
    words = [sys.executable, "-c", limited, *command(path, "--epochs", "2", "--resume")[3:]]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"lcrbnn: a checkpoint cannot be written to {path}: File too large; the checkpoint ")
    assert said.endswith("step-000000002.safetensors is kept")
    assert not list(path.rglob("*.part"))
    small_run(path, resume=True)
    assert_same(straight, path)


def test_a_log_that_cannot_be_written_ends_the_run_in_order(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RunFolder, line: dict[str, Any]) -> None:
        with self.log.open("ab") as file:
            file.write(b'{"epoch": 1, "st')  # the disk took this much
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "append", full)
        with pytest.raises(
            Failed, match=r"the log cannot be written to .*: No space left on device; the checkpoint .* is kept"
        ):
            small_run(tmp_path / "run")
    small_run(tmp_path / "run", resume=True)
    assert_same(straight, tmp_path / "run")


def test_two_runs_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        done = subprocess.run(
            command(tmp_path / "run", "--epochs", "1"), env=environment(), capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == f"lcrbnn: another process is writing the run in {tmp_path / 'run'}; wait for it or stop it\n"
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_folder_that_another_process_took_meanwhile_is_left_alone(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building takes seconds; only what is seen under the lock counts."""
    import shutil

    from lcrbnn.train import run

    whole = run._loops

    def slow(*args: Any) -> list[Loop]:
        shutil.copytree(straight, tmp_path / "run")
        return whole(*args)

    monkeypatch.setattr(run, "_loops", slow)
    with pytest.raises(InputError, match=r"there is a run in .* already"):
        small_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    small_run(tmp_path / "run", resume=True)
    before, after = ((p / "record.json").read_bytes() for p in (straight, tmp_path / "run"))
    assert before == after
