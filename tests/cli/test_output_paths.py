"""Every command rejects an output path that cannot be written, before any work."""

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

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError, check_output_file, check_output_folder
from lcrbnn.runs import atomic_files as atomic_files
from tests.runs.test_folder import without_root_rights
from tests.train.helpers import SMALL, train_small_run

PLAN_TEXT = 'recipe = "digits"\nseeds = [0]\nbaseline = "none"\n\n[settings]\nepochs = 1\n\n[variants.none]\n'
TABLE_SPEC_TEXT = """plans_folder = "."
[tables.small]
title = "Small"
source = "none"
rows = [{ title = "none", variant = "plan/none", num_seeds = 1, keep_weights_of_seeds = [0] }]
"""
CPU = ["--device", "cpu"]
REPRODUCE = ["reproduce", "--table-spec", "tables.toml"]
FILE_COMMANDS = {
    "cost": (["cost", "resnet8-double", "-o"], "out.json"),
    "export": (["export", "run", "-o"], "out.bnn"),
    "export to ONNX": (["export", "run", "-o"], "out.onnx"),
    "methods --curves": (["methods", "--curves"], "out.svg"),
    "plot": (["plot", "run", "-o"], "out.svg"),
    "report": (["report", "run", "-o"], "out.html"),
    "report as Markdown": (["report", "run", "-o"], "out.md"),
    "reproduce --markdown": ([*REPRODUCE, "--markdown"], "out.md"),
    "reproduce --gains-figure": ([*REPRODUCE, "--gains-figure"], "out.svg"),
}
FOLDER_COMMANDS = {
    "analyze": ["analyze", "run", *CPU, "--num-images", "8", "-o"],
    "attack": ["attack", "run", *CPU, "--num-images", "4", "--attacks", "fgsm", "-o"],
    "data cifar10": ["data", "cifar10", "--data-folder"],
    "data frost": ["data", "frost", "--data-folder"],
    "demo": ["demo", "--epochs", "1", "--out"],
    "layers": ["layers", "run", *CPU, "--num-images", "8", "-o"],
    "reproduce --runs-folder": [*REPRODUCE, "small", *CPU, "--records", "records", "--runs-folder"],
    "reproduce --records": [*REPRODUCE, "small", *CPU, "--records"],
    "robustness --records": ["robustness", "run", *CPU, "--num-images", "4", "--corruptions", "fog", "--records"],
    "study --runs-folder": ["study", "plan.toml", *CPU, "--records", "records", "--runs-folder"],
    "study --records": ["study", "plan.toml", *CPU, "--runs-folder", "runs", "--records"],
    "train": ["train", "digits", *CPU, "--epochs", "1", "--run-folder"],
    "train --seeds": ["train", "digits", *CPU, "--epochs", "1", "--seeds", "0-1", "--run-folder"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train_small_run(tmp_path_factory.mktemp("runs") / "run", SMALL.replace(epochs=1))


@pytest.fixture
def read_error_message(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str]], str]:
    """Return a function that runs a command, which must fail without any work, and returns its error message.

    The current folder contains a run, a plan and a table spec. Forward passes, downloads and figures raise an error.
    """
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "records").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN_TEXT)
    (tmp_path / "tables.toml").write_text(TABLE_SPEC_TEXT)
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "readable").mkdir()
    monkeypatch.chdir(tmp_path)

    def raise_forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("work was done before the output was checked")

    for name in (
        "torch.nn.Module.__call__",
        "lcrbnn.data.download.urlopen",
        "lcrbnn.evaluation.corruptions.frost_photos.run_package_manager",
    ):
        monkeypatch.setattr(name, raise_forbidden)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", raise_forbidden)

    def run_rejected_command(argv: list[str]) -> str:
        tree_before = _list_tree(tmp_path)
        assert main(argv) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert re.fullmatch(r"lcrbnn: [^\n]+\n", output.err)
        assert _list_tree(tmp_path) == tree_before
        return output.err

    return run_rejected_command


def _list_tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.name != "__pycache__")


@pytest.mark.parametrize("name", FILE_COMMANDS)
def test_unwritable_output_file_is_rejected_before_any_work(
    name: str, read_error_message: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv, file = FILE_COMMANDS[name]
    Path(file).mkdir()
    assert f"cannot be written to {file}: it is a folder" in read_error_message([*argv, file])
    Path(file).rmdir()
    os.mkfifo(file)
    assert f"cannot be written to {file}: it is not a regular file" in read_error_message([*argv, file])
    assert f"cannot be written to file/a/{file}: " in (error_text := read_error_message([*argv, f"file/a/{file}"]))
    assert "/file is not a folder" in error_text
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path).name != "readable")
    assert f"cannot be written to readable/{file}: " in (error_text := read_error_message([*argv, f"readable/{file}"]))
    assert "/readable is not writable" in error_text


@pytest.mark.parametrize("name", FOLDER_COMMANDS)
def test_unwritable_output_folder_is_rejected_before_any_work(
    name: str, read_error_message: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("file", "file/below"):
        assert path in (error_text := read_error_message([*FOLDER_COMMANDS[name], path]))
        assert "file is not a folder" in error_text or "it is not a folder" in error_text
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path).name != "readable")
    for path in ("readable", "readable/below"):
        assert "/readable is not writable" in read_error_message([*FOLDER_COMMANDS[name], path])


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
def test_folder_in_place_of_an_output_file_is_rejected_before_any_work(
    command: str, file: str, read_error_message: Callable[[list[str]], str]
) -> None:
    (Path("out") / file).mkdir(parents=True)
    error_text = read_error_message([*FOLDER_COMMANDS[command], "out"])
    assert f"{file}: it is a folder" in error_text or f"{file} cannot be read: Is a directory" in error_text


def test_file_in_place_of_the_chart_folder_is_rejected_before_any_work(
    read_error_message: Callable[[list[str]], str],
) -> None:
    Path("out-charts").write_text("")
    assert "cannot be written to out-charts: it is not a folder" in read_error_message(
        ["report", "run", "-o", "out.md"]
    )


def test_reproduce_creates_the_folder_of_its_markdown_file(
    read_error_message: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*REPRODUCE, "--markdown", "new/folder/page.md"]) == 0
    assert Path("new/folder/page.md").is_file()


# -- check_output_file and check_output_folder -------------------------------------------------------------------------


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """Return a folder without write permission. It is not in tmp_path, which other users may not enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o555)
    yield path
    shutil.rmtree(path)


def test_read_only_folder_is_rejected(read_only_folder: Path) -> None:
    with without_root_rights():
        for check, path in ((check_output_folder, read_only_folder), (check_output_file, read_only_folder / "a" / "b")):
            with pytest.raises(
                InputError, match=f"^a figure cannot be written to {path}: {read_only_folder} is not writable"
            ):
                check(path, "a figure")


def test_writable_paths_are_accepted_and_nothing_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    Path("linked").symlink_to("file")
    tree_before = _list_tree(tmp_path)
    for path in ("file", "linked", "new", "a/b/c", "folder/new", "link/new", "folder/../new"):
        check_output_file(Path(path), "a record")
    for path in (".", "folder", "link", "new", "a/b/c", "folder/a", "folder/../new"):
        check_output_folder(Path(path), "records")
    assert _list_tree(tmp_path) == tree_before


def test_dangling_links_and_too_long_names_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    check_output_file(tmp_path / "link", "a record")  # the link itself is replaced
    for check, path in ((check_output_folder, "link"), (check_output_file, "link/a"), (check_output_folder, "link/a")):
        with pytest.raises(InputError, match=r"link is not a folder|it is not a folder"):
            check(tmp_path / path, "a record")
    for name in ("a" * 251, "new/" + "a" * 251, "a" * 300 + "/b", "ä" * 126):
        with pytest.raises(InputError, match=r"a name in it is too long"):
            check_output_file(tmp_path / name, "a record")
    atomic_files.write_atomic(tmp_path / ("a" * 250), [b""])
    check_output_file(tmp_path / ("a" * 250), "a record")
