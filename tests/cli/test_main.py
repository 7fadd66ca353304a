"""Help, examples, exit codes and error messages of the commands; `demo` and `predict` from start to end."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lcrbnn import __version__
from lcrbnn.cli.main import COMMANDS, build_parser, main
from lcrbnn.nn.methods.method_registry import METHODS
from lcrbnn.nn.models.model_registry import MODELS

ROOT = Path(__file__).parents[2]
ZOO_MODEL = "zoo:digits-resnet8-irnet"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out and summary in out for name, summary in COMMANDS.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_description_and_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    help_text = capsys.readouterr().out
    assert COMMANDS[command] in " ".join(help_text.split())
    examples = help_text.partition("\nexamples:\n")[2].splitlines()
    assert examples
    for program, name, *argv in map(shlex.split, examples):
        assert program == "lcrbnn"
        build_parser(name).parse_args(argv)


def test_methods_and_models_are_listed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(MODELS)
    assert "1,695,547,392" in next(line for line in lines if line.startswith("resnet18-binary-shortcut-imagenet"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["trian"],
            f"lcrbnn: no command is called 'trian'; the closest is train (lcrbnn --help lists all {len(COMMANDS)})\n",
        ),
        (["demo", "--epochs", "0"], "lcrbnn: --epochs must be a whole number of at least 1; got 0\n"),
        (["demo", "--epochs", "ten"], "lcrbnn: argument --epochs: invalid int value: 'ten'; see lcrbnn demo --help\n"),
        (["demo", "--lcr-weight", "-1"], "lcrbnn: --lcr-weight must be a number of at least 0; got -1.0\n"),
        (["demo", "--num-seeds", "0"], "lcrbnn: --num-seeds must be a whole number from 1 to 1000; got 0\n"),
        (
            ["demo", "--num-seeds", "99999999"],
            "lcrbnn: --num-seeds must be a whole number from 1 to 1000; got 99999999\n",
        ),
        (["demo", "--nope"], "lcrbnn: unrecognized arguments: --nope; see lcrbnn demo --help\n"),
        (
            ["cost", "resnet20-double", "--num-classes", "99999999999999"],
            "lcrbnn: num_classes must be a whole number from 1 to 1000000; got 99999999999999\n",
        ),
        (
            ["cost", "resnet20-double", "--num-classes", str(10**30)],
            f"lcrbnn: num_classes must be a whole number from 1 to 1000000; got {10**30}\n",
        ),
        (["methods", "--curves", "x.doc"], "lcrbnn: a figure is a .png, .svg or .pdf file; got 'x.doc'\n"),
    ],
)
def test_invalid_input_gives_a_one_line_error_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    output = capsys.readouterr()
    assert output.err == message
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("allocate", "amount"),
    [
        (lambda: torch.empty(10**15), "4000000000000000 bytes"),
        (lambda: torch.empty(2**62, 64), "more bytes than a computer can address"),
        (lambda: np.empty(10**15), "7.11 PiB"),
        (lambda: bytearray(2**62), "so many bytes"),
    ],
)
def test_failed_allocation_gives_a_one_line_error(
    allocate: Callable[[], Any], amount: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lcrbnn.cli.models.execute", lambda args: allocate())
    assert main(["models"]) == 1
    assert capsys.readouterr().err == f"lcrbnn: there is not enough memory: {amount} cannot be allocated\n"


def test_other_runtime_errors_are_not_reported_as_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcrbnn.cli.models.execute", lambda args: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        main(["models"])


def test_output_folder_that_cannot_be_created_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "demo")]) == 2
    assert "the demo cannot be written to" in capsys.readouterr().err
    assert main(["methods", "--curves", str(tmp_path / "file" / "a.png")]) == 2
    assert "a figure cannot be written to" in capsys.readouterr().err


def test_demo_trains_evaluates_and_prints_the_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["demo", "--out", str(tmp_path), "--epochs", "1", "--num-seeds", "2"]
    assert main(argv) == 0
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines()]
    assert [r[0] for r in rows[1:3]] == ["0", "8"]
    assert all(r.count("%") == 2 and r.count("±") == 3 for r in rows[1:3])
    assert str(tmp_path / "demo.png") in output.out
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo.png", "digits.bnn", "lambda-0", "lambda-8"]
    for run in ("lambda-0/seed-0", "lambda-0/seed-1", "lambda-8/seed-0", "lambda-8/seed-1"):
        assert (tmp_path / run / "record.json").exists()
    assert "64/64  epoch 1" in output.err
    # A second call trains nothing and does not evaluate the test set again.
    records = {p: p.read_bytes() for p in tmp_path.rglob("record.json")}
    assert main(argv) == 0
    assert drop_speed_line(capsys.readouterr().out) == drop_speed_line(output.out)
    assert {p: p.read_bytes() for p in tmp_path.rglob("record.json")} == records


def drop_speed_line(text: str) -> list[str]:
    """Return all lines except the speed of the engine, which differs between runs."""
    lines = text.splitlines()
    assert any(line.startswith("speed:") for line in lines)
    return [line for line in lines if not line.startswith("speed:")]


def test_interrupted_demo_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["demo", "--out", str(tmp_path), "--epochs", "1", "--num-seeds", "1"]
    assert main(argv) == 0
    table = capsys.readouterr().out
    (tmp_path / "lambda-8" / "seed-0" / "record.json").unlink()
    assert main(argv) == 0
    assert drop_speed_line(capsys.readouterr().out) == drop_speed_line(table)


def test_method_curves_are_drawn_and_the_committed_figure_is_up_to_date(tmp_path: Path) -> None:
    assert main(["methods", "--curves", str(tmp_path / "a.svg")]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {name}: activation" in drawn for name in METHODS)
    figures = (drawn, (ROOT / "docs" / "methods.svg").read_text())
    labels, committed = ([line for line in text.splitlines() if "<!--" in line] for text in figures)
    assert labels == committed


def run_command(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # tests run in parallel
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_package_runs_as_a_module(tmp_path: Path) -> None:
    process = run_command(sys.executable, "-m", "lcrbnn", "--version", cwd=tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (0, f"lcrbnn {__version__}\n", "")
    process = run_command(sys.executable, "-m", "lcrbnn", "nope", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")


def test_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    process = run_command("bash", "-o", "pipefail", "-c", f"{sys.executable} -m lcrbnn methods | head -1", cwd=tmp_path)
    assert process.stdout.startswith("bnn")
    assert process.stderr == ""


def test_training_continues_after_its_output_pipe_is_closed(tmp_path: Path) -> None:
    command = f"{sys.executable} -m lcrbnn train digits --model resnet8-double --epochs 2 --device cpu --run-folder run"
    process = run_command("bash", "-o", "pipefail", "-c", f"{command} 2>&1 | head -1", cwd=tmp_path)
    assert (process.returncode, process.stdout[:9]) == (0, "epoch 1/2")
    assert (tmp_path / "run" / "record.json").exists()


@pytest.mark.parametrize("redirection", ["2>&1 | true", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_exit_code_is_correct_with_closed_standard_streams(redirection: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m lcrbnn train digits --epochs none --run-folder run"
    assert run_command("bash", "-o", "pipefail", "-c", f"{command} {redirection}", cwd=tmp_path).returncode == 2


def test_help_does_not_import_torch_numpy_or_matplotlib() -> None:
    code = (
        "import sys; from lcrbnn.cli.main import main; main([]); "
        "print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    process = run_command(sys.executable, "-c", code)
    assert process.stdout.endswith("set()\n"), process.stderr


def test_demo_works_without_matplotlib_and_pillow(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['PIL'] = None\n"
        "from lcrbnn.cli.main import main; main(['demo', '--epochs', '1', '--num-seeds', '1'])\n"
        "sys.exit(main(['methods', '--curves', 'a.png']))"
    )
    process = run_command(sys.executable, "-c", code, cwd=tmp_path)
    assert process.stdout.startswith("  lambda  297 validation")
    assert "no curves: a figure needs matplotlib, which is not installed here\n" in process.stdout
    assert process.returncode == 2
    assert process.stderr.endswith("lcrbnn: a figure needs matplotlib, which is not installed here\n")


def test_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lcrbnn.cli.methods", None)  # missing modules of the package itself are bugs
    with pytest.raises(ModuleNotFoundError):
        main(["methods"])
    code = (
        "import sys; sys.modules['torch'] = None; from lcrbnn.cli.main import main; sys.exit(main(['eval', 'zoo:x']))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert process.returncode == 2
    assert process.stderr == "lcrbnn: eval needs the package torch, which is not installed here\n"


@pytest.mark.parametrize("command", ["inspect", "predict", "bench"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("folder", "folder is a folder, but a model must be a .bnn file, or zoo:NAME"),
        (
            "run",
            "run is the folder of a run, not a model file; `lcrbnn export run -o FILE.bnn` writes one",
        ),
        ("pipe", "pipe is a pipe, but a model must be a .bnn file"),
        ("device", "/dev/null is a device, but a model must be a .bnn file"),
        ("none", "none: the file does not exist"),
    ],
)
def test_model_that_is_not_a_file_is_rejected_with_its_kind(
    command: str,
    kind: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "run"):
        Path(name).mkdir()
    Path("run", "spec.json").write_text("{}")
    os.mkfifo("pipe")
    argv = [command, "/dev/null" if kind == "device" else kind, *(["a.png"] if command == "predict" else [])]
    assert main(argv) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"lcrbnn: {message}")
    assert output.err.count("\n") == 1


def test_wasm_page_without_clang_gives_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools.native import wasm_page as wasm_page

    monkeypatch.setenv("PATH", str(tmp_path))
    assert wasm_page.main(["-o", str(tmp_path / "page")]) == 2
    error_text = capsys.readouterr().err
    assert error_text.count("\n") == 1
    assert error_text.endswith(
        f"it needs clang, lld and the C and C++ libraries of WASI (Debian: {wasm_page.DEBIAN_PACKAGES})\n"
    )
    assert wasm_page.DEBIAN_PACKAGES in " ".join((wasm_page.__doc__ or "").split())
    assert not (tmp_path / "page").exists()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return a folder with 40 readable and 2 unreadable pictures, which fill two batches."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(40):
        Image.new("L", (8, 8), 6 * i).save(folder / f"{i:02}.png")
    (folder / "05 broken.png").write_bytes(b"")
    (folder / "33 broken.png").write_bytes((folder / "33.png").read_bytes()[:-20])
    return folder


def test_predict_lists_unreadable_pictures_after_the_results(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readable_pictures = [str(path) for path in sorted(pictures.iterdir()) if "broken" not in path.name]
    assert main(["predict", ZOO_MODEL, *readable_pictures]) == 0
    expected_lines = capsys.readouterr().out
    assert main(["predict", ZOO_MODEL, str(pictures)]) == 1
    output = capsys.readouterr()
    assert output.out == expected_lines
    assert len(expected_lines.splitlines()) == 40
    first, second, last = output.err.splitlines()
    assert first == f"lcrbnn: skipped: {pictures}/05 broken.png cannot be read as a picture: it is empty"
    assert second.startswith(f"lcrbnn: skipped: {pictures}/33 broken.png cannot be read as a picture: it cannot be")
    assert last == "lcrbnn: 2 of the 42 pictures cannot be read"
    process = run_command("bash", "-c", f"{sys.executable} -m lcrbnn predict {ZOO_MODEL} '{pictures}' 2>&1")
    assert (process.returncode, process.stdout) == (
        1,
        expected_lines + output.err,
    )  # in this order if both streams go to one file


def test_predict_with_allow_broken_exits_with_0(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", ZOO_MODEL, str(pictures), "--allow-broken"]) == 0
    output = capsys.readouterr()
    assert (len(output.out.splitlines()), len(output.err.splitlines())) == (40, 2)


def test_predict_with_strict_stops_at_the_first_unreadable_picture(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", ZOO_MODEL, str(pictures), "--strict"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lcrbnn: {pictures}/05 broken.png cannot be read as a picture: it is empty")
    assert output.err.count("\n") == 1
    assert main(["predict", ZOO_MODEL, str(pictures), "--strict", "--allow-broken"]) == 2
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--allow-broken"]])
def test_predict_fails_if_all_pictures_are_unreadable(
    options: list[str], pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [str(path) for path in sorted(pictures.glob("*broken*"))]
    assert main(["predict", ZOO_MODEL, *broken, *options]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 3
    assert output.err.endswith("lcrbnn: none of the 2 pictures can be read\n")
    assert main(["predict", ZOO_MODEL, str(pictures / "none.png"), *options]) == 2  # the file does not exist
    assert capsys.readouterr().err == f"lcrbnn: there is no picture {pictures / 'none.png'}\n"


def test_predict_rejects_a_model_with_unsupported_channels(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lcrbnn.deploy.pictures.PIL_MODES", {3: "RGB"})
    assert main(["predict", ZOO_MODEL, str(pictures), "--allow-broken"]) == 2
    assert (
        capsys.readouterr().err == "lcrbnn: pictures have 1 or 3 channels, but the input of this model has 1 channels\n"
    )
