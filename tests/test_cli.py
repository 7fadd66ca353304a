from __future__ import annotations

import os
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
from lcrbnn.cli import COMMANDS, main
from lcrbnn.methods import METHODS
from lcrbnn.models import MODELS

ROOT = Path(__file__).parents[1]
ZOO = "zoo:digits-resnet8-irnet"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out and summary in out for name, summary in COMMANDS.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert COMMANDS[command] in capsys.readouterr().out


def test_methods_and_models_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(MODELS)
    assert "1,695,547,392" in next(line for line in lines if line.startswith("resnet18-binary-shortcut-imagenet"))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["trian"],
            "lcrbnn: no command is called 'trian'; there are demo, train, eval, robustness, export, predict, "
            "inspect, bench, study, reproduce, plot, layers, report, zoo, recipes, data, methods, models, cost, "
            "analyze, attack (did you mean 'train'?)\n",
        ),
        (["demo", "--epochs", "0"], "lcrbnn: --epochs must be a whole number of at least 1; got 0\n"),
        (["demo", "--epochs", "ten"], "lcrbnn: argument --epochs: invalid int value: 'ten'; see lcrbnn demo --help\n"),
        (["demo", "--weight", "-1"], "lcrbnn: --weight must be a number of at least 0; got -1.0\n"),
        (["demo", "--seeds", "0"], "lcrbnn: --seeds must be a whole number from 1 to 1000; got 0\n"),
        (["demo", "--seeds", "99999999"], "lcrbnn: --seeds must be a whole number from 1 to 1000; got 99999999\n"),
        (["demo", "--nope"], "lcrbnn: unrecognized arguments: --nope; see lcrbnn demo --help\n"),
        (
            ["cost", "resnet20-double", "--classes", "99999999999999"],
            "lcrbnn: classes must be a whole number from 1 to 1000000; got 99999999999999\n",
        ),
        (
            ["cost", "resnet20-double", "--classes", str(10**30)],
            f"lcrbnn: classes must be a whole number from 1 to 1000000; got {10**30}\n",
        ),
        (["methods", "--curves", "x.doc"], "lcrbnn: a figure is a .png, .svg or .pdf file; got 'x.doc'\n"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.err == sentence
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("work", "amount"),
    [
        (lambda: torch.empty(10**15), "4000000000000000 bytes"),
        (lambda: torch.empty(2**62, 64), "more bytes than a computer can address"),
        (lambda: np.empty(10**15), "7.11 PiB"),
        (lambda: bytearray(2**62), "so many bytes"),
    ],
)
def test_an_allocation_that_fails_is_one_sentence(
    work: Callable[[], Any], amount: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lcrbnn.cli.models.execute", lambda args: work())
    assert main(["models"]) == 1
    assert capsys.readouterr().err == f"lcrbnn: there is not enough memory: {amount} cannot be allocated\n"


def test_other_errors_of_torch_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcrbnn.cli.models.execute", lambda args: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        main(["models"])


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "demo")]) == 2
    assert "the demo cannot be written to" in capsys.readouterr().err
    assert main(["methods", "--curves", str(tmp_path / "file" / "a.png")]) == 2
    assert "a figure cannot be written to" in capsys.readouterr().err


def test_the_demo_trains_evaluates_and_says_where_everything_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", "--out", str(tmp_path), "--epochs", "1", "--seeds", "2"]
    assert main(words) == 0
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert [r[0] for r in rows[1:3]] == ["0", "8"]
    assert all(r.count("%") == 2 and r.count("±") == 3 for r in rows[1:3])
    assert str(tmp_path / "demo.png") in shown.out
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo.png", "digits.bnn", "lambda-0", "lambda-8"]
    for run in ("lambda-0/seed-0", "lambda-0/seed-1", "lambda-8/seed-0", "lambda-8/seed-1"):
        assert (tmp_path / run / "record.json").exists()
    assert "64/64  epoch 1" in shown.err
    # a second call trains nothing and reads no test image again
    records = {p: p.read_bytes() for p in tmp_path.rglob("record.json")}
    assert main(words) == 0
    assert but_speed(capsys.readouterr().out) == but_speed(shown.out)
    assert {p: p.read_bytes() for p in tmp_path.rglob("record.json")} == records


def but_speed(text: str) -> list[str]:
    """All lines but the one that no two runs have alike."""
    lines = text.splitlines()
    assert any(line.startswith("speed:") for line in lines)
    return [line for line in lines if not line.startswith("speed:")]


def test_an_interrupted_demo_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--out", str(tmp_path), "--epochs", "1", "--seeds", "1"]
    assert main(words) == 0
    table = capsys.readouterr().out
    (tmp_path / "lambda-8" / "seed-0" / "record.json").unlink()
    assert main(words) == 0
    assert but_speed(capsys.readouterr().out) == but_speed(table)


def test_the_curves_are_drawn_and_the_committed_ones_are_up_to_date(tmp_path: Path) -> None:
    assert main(["methods", "--curves", str(tmp_path / "a.svg")]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {name}: activation" in drawn for name in METHODS)
    figures = (drawn, (ROOT / "docs" / "methods.svg").read_text())
    labels, committed = ([line for line in text.splitlines() if "<!--" in line] for text in figures)
    assert labels == committed


def run(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # two workers share two cores
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_source_tree_runs_as_a_module(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "lcrbnn", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lcrbnn {__version__}\n", "")
    done = run(sys.executable, "-m", "lcrbnn", "nope", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    done = run("bash", "-o", "pipefail", "-c", f"{sys.executable} -m lcrbnn methods | head -1", cwd=tmp_path)
    assert done.stdout.startswith("bnn")
    assert done.stderr == ""


def test_a_run_whose_lines_nobody_reads_any_more_goes_on_to_its_end(tmp_path: Path) -> None:
    words = f"{sys.executable} -m lcrbnn train digits --model resnet8-double --epochs 2 --device cpu --run run"
    done = run("bash", "-o", "pipefail", "-c", f"{words} 2>&1 | head -1", cwd=tmp_path)
    assert (done.returncode, done.stdout[:9]) == (0, "epoch 1/2")
    assert (tmp_path / "run" / "record.json").exists()


@pytest.mark.parametrize("closed", ["2>&1 | true", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_mistake_has_its_exit_code_when_nobody_reads_of_it(closed: str, tmp_path: Path) -> None:
    words = f"{sys.executable} -m lcrbnn train digits --epochs none --run run"
    assert run("bash", "-o", "pipefail", "-c", f"{words} {closed}", cwd=tmp_path).returncode == 2


def test_importing_the_package_and_its_help_load_nothing_heavy() -> None:
    code = (
        "import sys; from lcrbnn.cli import main; main([]); print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout.endswith("set()\n"), done.stderr


def test_training_needs_neither_matplotlib_nor_anything_but_torch_and_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['PIL'] = None\n"
        "from lcrbnn.cli import main; main(['demo', '--epochs', '1', '--seeds', '1'])\n"
        "sys.exit(main(['methods', '--curves', 'a.png']))"
    )
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.stdout.startswith("  lambda  297 validation")
    assert "no curves: a figure needs matplotlib, which is not installed here\n" in done.stdout
    assert done.returncode == 2
    assert done.stderr.endswith("lcrbnn: a figure needs matplotlib, which is not installed here\n")


def test_a_package_that_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lcrbnn.cli.methods", None)  # a module of ours that is not there is our own fault
    with pytest.raises(ModuleNotFoundError):
        main(["methods"])
    code = "import sys; sys.modules['torch'] = None; from lcrbnn.cli import main; sys.exit(main(['eval', 'zoo:x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "lcrbnn: eval needs the package torch, which is not installed here\n"


@pytest.mark.parametrize("command", ["inspect", "predict", "bench"])
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("folder", "folder is a folder, and a model is a .bnn file, or zoo:NAME"),
        (
            "run",
            "run is the folder of a run, and a model is a file: `lcrbnn export run -o FILE.bnn` writes it",
        ),
        ("pipe", "pipe is a pipe, and a model is a .bnn file"),
        ("device", "/dev/null is a device, and a model is a .bnn file"),
        ("none", "none: there is no such file"),
    ],
)
def test_what_is_no_file_is_called_what_it_is(
    command: str,
    kind: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "run"):
        Path(name).mkdir()
    Path("run", "spec.json").write_text("{}")
    os.mkfifo("pipe")
    words = [command, "/dev/null" if kind == "device" else kind, *(["a.png"] if command == "predict" else [])]
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"lcrbnn: {sentence}")
    assert shown.err.count("\n") == 1


def test_a_page_without_clang_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools import page

    monkeypatch.setenv("PATH", str(tmp_path))
    assert page.main(["-o", str(tmp_path / "page")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith(f"it takes clang, lld and the C and C++ libraries of WASI (Debian: {page.DEBIAN})\n")
    assert page.DEBIAN in " ".join((page.__doc__ or "").split())
    assert not (tmp_path / "page").exists()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Forty good pictures and two broken ones among them, in two batches."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(40):
        Image.new("L", (8, 8), 6 * i).save(folder / f"{i:02}.png")
    (folder / "05 broken.png").write_bytes(b"")
    (folder / "33 broken.png").write_bytes((folder / "33.png").read_bytes()[:-20])
    return folder


def test_predict_classifies_the_others_and_lists_broken_pictures_at_the_end(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [str(path) for path in sorted(pictures.iterdir()) if "broken" not in path.name]
    assert main(["predict", ZOO, *good]) == 0
    wanted = capsys.readouterr().out
    assert main(["predict", ZOO, str(pictures)]) == 1
    shown = capsys.readouterr()
    assert shown.out == wanted
    assert len(wanted.splitlines()) == 40
    first, second, last = shown.err.splitlines()
    assert first == f"lcrbnn: left out: {pictures}/05 broken.png is no picture that can be read: it is empty"
    assert second.startswith(f"lcrbnn: left out: {pictures}/33 broken.png is no picture that can be read: it cannot be")
    assert last == "lcrbnn: 2 of the 42 pictures cannot be read"
    done = run("bash", "-c", f"{sys.executable} -m lcrbnn predict {ZOO} '{pictures}' 2>&1")
    assert (done.returncode, done.stdout) == (1, wanted + shown.err)  # in this order in a file that takes both


def test_predict_ends_with_0_without_broken_pictures_if_asked(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", ZOO, str(pictures), "--skip-broken"]) == 0
    shown = capsys.readouterr()
    assert (len(shown.out.splitlines()), len(shown.err.splitlines())) == (40, 2)


def test_predict_ends_at_a_broken_picture_if_asked(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", ZOO, str(pictures), "--strict"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"lcrbnn: {pictures}/05 broken.png is no picture that can be read: it is empty")
    assert shown.err.count("\n") == 1
    assert main(["predict", ZOO, str(pictures), "--strict", "--skip-broken"]) == 2
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--skip-broken"]])
def test_predict_fails_if_all_pictures_are_broken(
    more: list[str], pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [str(path) for path in sorted(pictures.glob("*broken*"))]
    assert main(["predict", ZOO, *broken, *more]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 3
    assert shown.err.endswith("lcrbnn: none of the 2 pictures can be read\n")
    assert main(["predict", ZOO, str(pictures / "none.png"), *more]) == 2  # a name that is not there
    assert capsys.readouterr().err == f"lcrbnn: there is no picture {pictures / 'none.png'}\n"


def test_a_model_that_takes_no_pictures_is_a_mistake_and_no_broken_picture(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lcrbnn.data.pictures.MODES", {3: "RGB"})
    assert main(["predict", ZOO, str(pictures), "--skip-broken"]) == 2
    assert capsys.readouterr().err == "lcrbnn: pictures have 1 or 3 channels, and this model takes 1\n"
