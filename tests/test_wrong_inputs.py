"""Wrong files in place of plans, tables, records and weights: one sentence, and no wait for a pipe."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder

STUDY = 'recipe = "digits"\nseeds = [0]\ncontrol = "none"\n[arms.none]\n'
TABLES = 'studies = "."\n[tables.a]\ntitle = "a"\nsource = "b"\n'


@pytest.mark.parametrize(
    "words",
    [
        ["study", "pipe"],
        ["reproduce", "--plan", "pipe"],
        ["plot", "pipe", "-o", "a.svg"],
        ["layers", "pipe", "-o", "a"],
        ["report", "pipe", "-o", "a.html"],
    ],
    ids=lambda words: words[0],
)
def test_a_pipe_is_refused_and_not_waited_for(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert main(words) == 2
    assert re.fullmatch(r"lcrbnn: .* pipe cannot be read: it is not a regular file\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        (["study", "a.toml"], STUDY.replace('"none"', '["none"]'), "the control ['none'] is none of its arms"),
        (
            ["reproduce", "--plan", "a.toml"],
            TABLES + 'rows = [{ title = "a", of = "a/b", seeds = 10_000_000_000 }]',
            "seeds must be a whole number from 1 to 1000; got 10000000000",
        ),
    ],
    ids=["control", "seeds"],
)
def test_a_wrong_value_in_a_plan_is_one_sentence(
    words: list[str],
    text: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(text)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["spec.json", "log.jsonl", "classes.json", "broken.json"])
def test_a_pipe_in_a_run_folder_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    read = {
        "spec.json": folder.read_spec,
        "log.jsonl": folder.read_log,
        "classes.json": folder.read_classes,
        "broken.json": folder.read_broken,
    }
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="it is not a regular file"):
        read[name]()


def test_a_pipe_in_place_of_a_recipe_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("a.toml")
    assert main(["train", "a.toml", "--run", "run"]) == 2
    assert "a.toml cannot be read: it is not a regular file" in capsys.readouterr().err
