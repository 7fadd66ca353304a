"""torchrun starts only `lcrbnn train`, and only for one run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from lcrbnn.cli.main import main


def test_torchrun_trains_one_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    for name, value in (("MASTER_ADDR", "localhost"), ("RANK", "0"), ("WORLD_SIZE", "x")):
        monkeypatch.setenv(name, value)
    assert main(["train", "digits", "--run-folder", str(tmp_path / "run"), "--seeds", "0-1"]) == 2
    assert capsys.readouterr().err == "lcrbnn: the environment variable WORLD_SIZE must be a number; got 'x'\n"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert main(["train", "digits", "--run-folder", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err == "lcrbnn: RANK must be less than WORLD_SIZE, 2; got 5\n"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    try:
        assert (
            main(["train", "digits", "--run-folder", str(tmp_path / "run"), "--device", "cpu", "--seeds", "0-1"]) == 2
        )
    finally:
        torch.distributed.destroy_process_group()
    assert capsys.readouterr().err == (
        "lcrbnn: under torchrun all processes share one run: start each seed by itself, with --seed\n"
    )


def test_only_train_accepts_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["recipes"]) == 2
    assert capsys.readouterr() == (
        "",
        "lcrbnn: torchrun starts several processes, but only train can use them; got recipes\n",
    )
