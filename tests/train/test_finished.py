"""A finished run is read only with the checkpoint that its record is of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from tests.train.helpers import SMALL, small_run
from tools.slim import slim

CPU = ["--device", "cpu"]
COMMANDS = {
    "export": ["export", "RUN", "-o", "OUT.bnn"],
    "eval": ["eval", "RUN", *CPU],
    "eval --final": ["eval", "RUN", "--final", *CPU],
    "analyze": ["analyze", "RUN", "--images", "8", *CPU],
    "layers": ["layers", "RUN", "-o", "OUT", "--images", "8", *CPU],
    "attack": ["attack", "RUN", "--images", "4", "--attacks", "fgsm", *CPU],
    "robustness": ["robustness", "RUN", "--images", "4", *CPU],
    "--start": ["train", "digits", "--run", "OUT", "--epochs", "1", "--batch", "300", "--start", "RUN", *CPU],
    "--teacher": [
        *["train", "digits", "--run", "OUT", "--epochs", "1", "--batch", "300"],
        *["--teacher", "RUN", "--distill", "0.5", *CPU],
    ],
}
FOREIGN = "is not the one that its record is of: put that checkpoint back"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return small_run(tmp_path_factory.mktemp("runs") / "run", SMALL.but(epochs=1))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A finished run whose newest checkpoint is missing; an older one is there."""
    shutil.copytree(whole, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    newest.unlink()
    return tmp_path / "run"


def _filled(words: list[str], run: Path) -> list[str]:
    return [word.replace("RUN", str(run)).replace("OUT", str(run.parent / "out")) for word in words]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_older_checkpoint(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_filled(COMMANDS[name], run)) == 2
    assert FOREIGN in capsys.readouterr().err
    assert not list(run.parent.glob("out*"))


@pytest.mark.parametrize("signs", [False, True])
def test_a_slim_copy_is_made_of_the_recorded_checkpoint_only(signs: bool, run: Path) -> None:
    with pytest.raises(InputError, match=FOREIGN):
        slim(run, run.parent / "slim", signs=signs)
    assert not (run.parent / "slim").exists()


def test_resume_reports_an_older_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--run", str(run), "--resume", *CPU])
    said = capsys.readouterr().err
    assert FOREIGN in said
    assert "without its record.json, --resume makes its end again" in said


def test_a_report_and_a_plot_say_that_the_checkpoint_is_another(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    log, out = RunFolder(run).log, run.parent / ("out.md" if command == "report" else "out.svg")
    for ratios in ({"1": 0.5}, {}, [{}]):
        log.write_text(json.dumps({**json.loads(log.read_text()), "ratios": ratios}) + "\n")
        assert main([command, str(run), "-o", str(out)]) == 2
        assert capsys.readouterr().err == (
            f"lcrbnn: {log} is damaged in line 1: ratios must be a list of numbers, or null; got {ratios}\n"
        )
    assert not list(run.parent.glob("out*"))


def test_a_slim_copy_is_read_as_the_run(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slim(whole, tmp_path / "slim")
    words = ["eval", "eval --final", "export", "analyze"]
    assert [main(_filled(COMMANDS[name], tmp_path / "slim")) for name in words] == [0] * len(words)
    assert main(["report", str(tmp_path / "slim"), "-o", str(tmp_path / "report.md")]) == 0
    assert FOREIGN not in (tmp_path / "report.md").read_text() + capsys.readouterr().err
    checkpoint = RunFolder(tmp_path / "slim").newest()
    assert checkpoint is not None
    other = small_run(tmp_path / "other", SMALL.but(epochs=1, lr=0.01))
    slim(other, tmp_path / "other-slim")
    theirs = RunFolder(tmp_path / "other-slim").newest()
    assert theirs is not None
    checkpoint.write_bytes(theirs.read_bytes())
    assert main(_filled(COMMANDS["eval"], tmp_path / "slim")) == 2
