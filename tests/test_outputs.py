"""Every command refuses an output that cannot be written, before any work."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_file, check_output_folder
from lcrbnn.runs import files
from tests.runs.test_folder import nobody
from tests.train.helpers import SMALL, small_run

PLAN = 'recipe = "digits"\nseeds = [0]\ncontrol = "none"\n\n[settings]\nepochs = 1\n\n[arms.none]\n'
PROMISE = """studies = "."
[tables.small]
title = "Small"
source = "none"
rows = [{ title = "none", of = "plan/none", seeds = 1, keep = [0] }]
"""
CPU = ["--device", "cpu"]
REPRODUCE = ["reproduce", "--plan", "promise.toml"]
FILES = {
    "cost": (["cost", "resnet8-double", "-o"], "out.json"),
    "cost --paper": (["cost", "--paper", "-o"], "out.json"),
    "export": (["export", "run", "-o"], "out.bnn"),
    "export to ONNX": (["export", "run", "-o"], "out.onnx"),
    "methods --curves": (["methods", "--curves"], "out.svg"),
    "methods --page": (["methods", "--page"], "out.md"),
    "plot": (["plot", "run", "-o"], "out.svg"),
    "report": (["report", "run", "-o"], "out.html"),
    "report as Markdown": (["report", "run", "-o"], "out.md"),
    "reproduce --write": ([*REPRODUCE, "--write"], "out.md"),
    "reproduce --gains": ([*REPRODUCE, "--gains"], "out.svg"),
}
FOLDERS = {
    "analyze": ["analyze", "run", *CPU, "--images", "8", "-o"],
    "attack": ["attack", "run", *CPU, "--images", "4", "--attacks", "fgsm", "-o"],
    "data cifar10": ["data", "cifar10", "--data-folder"],
    "data frost": ["data", "frost", "--data-folder"],
    "demo": ["demo", "--epochs", "1", "--out"],
    "layers": ["layers", "run", *CPU, "--images", "8", "-o"],
    "reproduce --run": [*REPRODUCE, "small", *CPU, "--records", "records", "--run"],
    "reproduce --records": [*REPRODUCE, "small", *CPU, "--records"],
    "robustness --records": ["robustness", "run", *CPU, "--images", "4", "--corruptions", "fog", "--records"],
    "study --run": ["study", "plan.toml", *CPU, "--records", "records", "--run"],
    "study --records": ["study", "plan.toml", *CPU, "--run", "runs", "--records"],
    "train": ["train", "digits", *CPU, "--epochs", "1", "--run"],
    "train --seeds": ["train", "digits", *CPU, "--epochs", "1", "--seeds", "0-1", "--run"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return small_run(tmp_path_factory.mktemp("runs") / "run", SMALL.but(epochs=1))


@pytest.fixture
def refusal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str]], str]:
    """Runs a command in a folder with a run and plans; no network may be called, nothing fetched or changed."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "records").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "promise.toml").write_text(PROMISE)
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "readable").mkdir()
    monkeypatch.chdir(tmp_path)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("work was done before the output was checked")

    for name in ("torch.nn.Module.__call__", "lcrbnn.data.fetch.urlopen", "lcrbnn.data.frost.packed"):
        monkeypatch.setattr(name, forbidden)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", forbidden)

    def refused(words: list[str]) -> str:
        before = _tree(tmp_path)
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert re.fullmatch(r"lcrbnn: [^\n]+\n", shown.err)
        assert _tree(tmp_path) == before
        return shown.err

    return refused


def _tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.name != "__pycache__")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    name: str, refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, file = FILES[name]
    Path(file).mkdir()
    assert f"cannot be written to {file}: it is a folder" in refusal([*words, file])
    Path(file).rmdir()
    os.mkfifo(file)
    assert f"cannot be written to {file}: it is not a regular file" in refusal([*words, file])
    assert f"cannot be written to file/a/{file}: " in (said := refusal([*words, f"file/a/{file}"]))
    assert "/file is not a folder" in said
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path).name != "readable")
    assert f"cannot be written to readable/{file}: " in (said := refusal([*words, f"readable/{file}"]))
    assert "/readable is not writable" in said


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    name: str, refusal: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("file", "file/below"):
        assert place in (said := refusal([*FOLDERS[name], place]))
        assert "file is not a folder" in said or "it is not a folder" in said
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path).name != "readable")
    for place in ("readable", "readable/below"):
        assert "/readable is not writable" in refusal([*FOLDERS[name], place])


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("analyze", "run/seed-0.json"),
        ("attack", "run/seed-0.json"),
        ("layers", "weights.svg"),
        ("layers", "maps.svg"),
        ("layers", "layers.json"),
        ("reproduce --records", "plan/none/seed-0.json"),
        ("reproduce --records", "weights/plan-none-seed-0.safetensors"),
        ("robustness --records", "run.json"),
        ("study --records", "none/seed-0.json"),
    ],
)
def test_a_folder_in_the_place_of_a_file_in_an_output_folder_is_refused_before_any_work(
    command: str, file: str, refusal: Callable[[list[str]], str]
) -> None:
    (Path("out") / file).mkdir(parents=True)
    said = refusal([*FOLDERS[command], "out"])
    assert f"{file}: it is a folder" in said or f"{file} cannot be read: Is a directory" in said


def test_a_file_in_the_place_of_the_charts_of_a_report_is_refused_before_any_work(
    refusal: Callable[[list[str]], str],
) -> None:
    Path("out-charts").write_text("")
    assert "cannot be written to out-charts: it is not a folder" in refusal(["report", "run", "-o", "out.md"])


def test_the_document_of_all_tables_makes_its_folder(refusal: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPRODUCE, "--write", "new/folder/page.md"]) == 0
    assert Path("new/folder/page.md").is_file()


# -- the check itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that nobody may write to; not in tmp_path, which nobody else may enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o555)
    yield path
    shutil.rmtree(path)


def test_a_folder_that_is_read_only_is_refused(readable: Path) -> None:
    with nobody():
        for check, place in ((check_output_folder, readable), (check_output_file, readable / "a" / "b")):
            with pytest.raises(InputError, match=f"^a figure cannot be written to {place}: {readable} is not writable"):
                check(place, "a figure")


def test_places_that_can_be_written_are_accepted_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    Path("linked").symlink_to("file")
    before = _tree(tmp_path)
    for path in ("file", "linked", "new", "a/b/c", "folder/new", "link/new", "folder/../new"):
        check_output_file(Path(path), "a record")
    for path in (".", "folder", "link", "new", "a/b/c", "folder/a", "folder/../new"):
        check_output_folder(Path(path), "records")
    assert _tree(tmp_path) == before


def test_links_to_nothing_and_names_that_are_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    check_output_file(tmp_path / "link", "a record")  # the link itself is replaced
    for check, path in ((check_output_folder, "link"), (check_output_file, "link/a"), (check_output_folder, "link/a")):
        with pytest.raises(InputError, match=r"link is not a folder|it is not a folder"):
            check(tmp_path / path, "a record")
    for long in ("a" * 251, "new/" + "a" * 251, "a" * 300 + "/b", "ä" * 126):
        with pytest.raises(InputError, match=r"a name in it is too long"):
            check_output_file(tmp_path / long, "a record")
    files.write_whole(tmp_path / ("a" * 250), [b""])
    check_output_file(tmp_path / ("a" * 250), "a record")
