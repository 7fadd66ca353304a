"""A finished run is only used with the checkpoint in its record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.runs.run_folder import RunFolder
from tests.train.helpers import SMALL, train_small_run
from tools.slim_run import slim_run

CPU = ["--device", "cpu"]
COMMANDS = {
    "export": ["export", "RUN", "-o", "OUT.bnn"],
    "eval": ["eval", "RUN", *CPU],
    "eval --test": ["eval", "RUN", "--test", *CPU],
    "analyze": ["analyze", "RUN", "--num-images", "8", *CPU],
    "layers": ["layers", "RUN", "-o", "OUT", "--num-images", "8", *CPU],
    "attack": ["attack", "RUN", "--num-images", "4", "--attacks", "fgsm", *CPU],
    "robustness": ["robustness", "RUN", "--num-images", "4", *CPU],
    "--init-from": [
        "train",
        "digits",
        "--run-folder",
        "OUT",
        "--epochs",
        "1",
        "--batch-size",
        "300",
        "--init-from",
        "RUN",
        *CPU,
    ],
    "--teacher": [
        *["train", "digits", "--run-folder", "OUT", "--epochs", "1", "--batch-size", "300"],
        *["--teacher", "RUN", "--distillation-alpha", "0.5", *CPU],
    ],
}
FOREIGN = "is not the one in its record: restore the recorded checkpoint"


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train_small_run(tmp_path_factory.mktemp("runs") / "run", SMALL.replace(epochs=1))


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a finished run without its newest checkpoint; an older one exists."""
    shutil.copytree(finished_run, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is not None
    newest.unlink()
    return tmp_path / "run"


def _fill_in_run_path(words: list[str], run: Path) -> list[str]:
    return [word.replace("RUN", str(run)).replace("OUT", str(run.parent / "out")) for word in words]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_rejects_a_checkpoint_older_than_the_record(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_fill_in_run_path(COMMANDS[name], run)) == 2
    assert FOREIGN in capsys.readouterr().err
    assert not list(run.parent.glob("out*"))


@pytest.mark.parametrize("signs", [False, True])
def test_a_slim_copy_needs_the_recorded_checkpoint(signs: bool, run: Path) -> None:
    with pytest.raises(InputError, match=FOREIGN):
        slim_run(run, run.parent / "slim", signs_only=signs)
    assert not (run.parent / "slim").exists()


def test_resume_reports_an_older_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--run-folder", str(run), "--resume", *CPU])
    error_text = capsys.readouterr().err
    assert FOREIGN in error_text
    assert "without its record.json, --resume repeats its end" in error_text


def test_report_and_plot_warn_about_another_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run.parent / "report.md"
    assert main(["report", str(run), "-o", str(page)]) == 0
    assert FOREIGN in page.read_text()
    assert FOREIGN in capsys.readouterr().err
    for record in (run, run / "record.json"):
        assert main(["plot", str(record), "-o", str(run.parent / "plot.svg")]) == 0
        assert FOREIGN in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_log_line_with_invalid_ratios_is_one_sentence(
    command: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = RunFolder(run).log_file, run.parent / ("out.md" if command == "report" else "out.svg")
    for ratios in ({"1": 0.5}, {}, [{}]):
        log.write_text(json.dumps({**json.loads(log.read_text()), "sigma_ratios": ratios}) + "\n")
        assert main([command, str(run), "-o", str(out)]) == 2
        assert capsys.readouterr().err == (
            f"lcrbnn: {log} is damaged in line 1: sigma_ratios must be a list of numbers, or null; got {ratios}\n"
        )
    assert not list(run.parent.glob("out*"))


def test_a_slim_copy_can_replace_the_run(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slim_run(finished_run, tmp_path / "slim")
    words = ["eval", "eval --test", "export", "analyze"]
    assert [main(_fill_in_run_path(COMMANDS[name], tmp_path / "slim")) for name in words] == [0] * len(words)
    assert main(["report", str(tmp_path / "slim"), "-o", str(tmp_path / "report.md")]) == 0
    assert FOREIGN not in (tmp_path / "report.md").read_text() + capsys.readouterr().err
    checkpoint = RunFolder(tmp_path / "slim").find_newest_checkpoint()
    assert checkpoint is not None
    other_run = train_small_run(tmp_path / "other", SMALL.replace(epochs=1, lr=0.01))
    slim_run(other_run, tmp_path / "other-slim")
    other_checkpoint = RunFolder(tmp_path / "other-slim").find_newest_checkpoint()
    assert other_checkpoint is not None
    checkpoint.write_bytes(other_checkpoint.read_bytes())
    assert main(_fill_in_run_path(COMMANDS["eval"], tmp_path / "slim")) == 2
