"""Invalid files in place of plans, table specs, records and weights give a one-line error, and pipes are not read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.runs.run_folder import RunFolder

PLAN_TEXT = 'recipe = "digits"\nseeds = [0]\nbaseline = "none"\n[variants.none]\n'
TABLE_SPEC_TEXT = 'plans_folder = "."\n[tables.a]\ntitle = "a"\nsource = "b"\n'


@pytest.mark.parametrize(
    "argv",
    [
        ["study", "pipe"],
        ["reproduce", "--table-spec", "pipe"],
        ["plot", "pipe", "-o", "a.svg"],
        ["layers", "pipe", "-o", "a"],
        ["report", "pipe", "-o", "a.html"],
    ],
    ids=lambda words: words[0],
)
def test_pipe_as_input_file_is_rejected_without_waiting(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert main(argv) == 2
    assert re.fullmatch(r"lcrbnn: .* pipe cannot be read: it is not a regular file\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    [
        (
            ["study", "a.toml"],
            PLAN_TEXT.replace('"none"', '["none"]'),
            "the baseline ['none'] must be one of the variants",
        ),
        (
            ["reproduce", "--table-spec", "a.toml"],
            TABLE_SPEC_TEXT + 'rows = [{ title = "a", variant = "a/b", num_seeds = 10_000_000_000 }]',
            "num_seeds must be a whole number from 1 to 1000; got 10000000000",
        ),
    ],
    ids=["baseline", "seeds"],
)
def test_invalid_value_in_a_plan_gives_a_one_line_error(
    argv: list[str],
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(text)
    assert main(argv) == 2
    error_text = capsys.readouterr().err
    assert message in error_text
    assert error_text.count("\n") == 1


@pytest.mark.parametrize("name", ["spec.json", "log.jsonl", "classes.json", "broken.json", "split.json"])
def test_pipe_in_a_run_folder_is_rejected_without_waiting(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    readers = {
        "spec.json": folder.read_spec,
        "log.jsonl": folder.read_log,
        "classes.json": folder.read_classes,
        "broken.json": folder.read_broken_images,
        "split.json": folder.read_split,
    }
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="it is not a regular file"):
        readers[name]()


def test_pipe_as_recipe_is_rejected_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("a.toml")
    assert main(["train", "a.toml", "--run-folder", "run"]) == 2
    assert "a.toml cannot be read: it is not a regular file" in capsys.readouterr().err
