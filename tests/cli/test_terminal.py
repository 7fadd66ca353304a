"""Control characters from files, names and options never reach the terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lcrbnn
from lcrbnn.deploy.engine.bnn_file import write_model
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.terminal import PrintableStream, escape_control_characters
from tests.data.image_folders import make_image_files, write_zip

ROOT = Path(__file__).parents[2]
SET_TITLE = "\x1b]0;x\x07"  # sets the window title
SET_COLOR = "\x9b31m"  # turns the text red: \x9b is CSI as a single C1 character
CONTROL_TEXT = f"{SET_TITLE}{SET_COLOR}\u202e\r\x7f"
ESCAPED_TEXT = r"\x1b]0;x\x07\x9b31m\u202e\x0d\x7f"
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def run_command(*argv: str, code: str = "", cwd: Path = ROOT) -> tuple[int, str]:
    """Run the command line in a process, after `code`, and return its exit code and its output (stdout and stderr).

    The output must not contain control characters.
    """
    script = f"import sys; from lcrbnn.cli.main import run\n{code}\nsys.argv = ['lcrbnn', *sys.argv[1:]]\nrun()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", script, *argv]
    process = subprocess.run(command, cwd=cwd, env=environment, stdout=-1, stderr=-2, timeout=120, check=False)
    output = process.stdout.decode()
    assert not CONTROL_CHARACTER.findall(output), output
    return process.returncode, output


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = lcrbnn.create_model("resnet8-double", "irnet", num_classes=3).eval()
    path = tmp_path_factory.mktemp("model") / "small.bnn"
    model_input = ModelInput(
        (8, 8, 3), (f"ant{CONTROL_TEXT}", f"bee{CONTROL_TEXT}", f"cat{CONTROL_TEXT}"), 255, (0.5,) * 3, (0.25,) * 3
    )
    write_model(path, export_model(network, model_input, f"name{CONTROL_TEXT}"))
    return path


def save_image(path: Path) -> Path:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    return path


def test_class_names_and_file_names_are_escaped(model_file: Path, tmp_path: Path) -> None:
    save_image(tmp_path / f"a{CONTROL_TEXT}.png")
    (tmp_path / f"b{CONTROL_TEXT}.png").write_bytes(b"")
    save_image(Path(os.fsdecode(os.fsencode(tmp_path) + b"/c\x9b31m.png")))  # a name that is not UTF-8
    code, output = run_command("predict", str(model_file), str(tmp_path), "--top", "3")
    assert code == 1
    assert all(f"{name}{ESCAPED_TEXT} " in output for name in ("ant", "bee", "cat"))
    assert f"a{ESCAPED_TEXT}.png  " in output
    assert f"skipped: {tmp_path}/b{ESCAPED_TEXT}.png cannot be read as a picture" in output
    assert r"c\udc9b31m.png" in output


def test_model_name_and_file_name_are_escaped(model_file: Path, tmp_path: Path) -> None:
    renamed_model = tmp_path / f"a{CONTROL_TEXT}.bnn"
    renamed_model.write_bytes(model_file.read_bytes())
    code, output = run_command("inspect", str(renamed_model))
    assert code == 0
    assert f"a{ESCAPED_TEXT}.bnn: name{ESCAPED_TEXT}, written by" in output


def test_zip_entries_are_escaped_on_the_terminal_and_unchanged_in_files(tmp_path: Path) -> None:
    files = {
        name.replace("ant", f"ant{CONTROL_TEXT}"): content for name, content in make_image_files(train=4, val=1).items()
    }
    argv = [
        "train",
        "--dataset",
        "folder",
        "--image-size",
        "16",
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--device",
        "cpu",
    ]
    argv += ["--workers", "0", "--run-folder", f"run{CONTROL_TEXT}", "--data-folder"]
    write_zip({**files, f"train/ant{CONTROL_TEXT}/bad.JPEG": b"no image"}, tmp_path / "bad.zip")
    code, output = run_command(*argv, str(tmp_path / "bad.zip"), cwd=tmp_path)
    assert code == 2
    assert f"ant{ESCAPED_TEXT}/bad.JPEG is broken" in output
    write_zip(files, tmp_path / "good.zip")
    (tmp_path / f"run{CONTROL_TEXT}").rename(tmp_path / "failed")
    code, output = run_command(*argv, str(tmp_path / "good.zip"), cwd=tmp_path)
    assert code == 0
    assert f"run{ESCAPED_TEXT}: epoch 1" in output
    assert json.loads((tmp_path / f"run{CONTROL_TEXT}" / "classes.json").read_text())[0] == f"ant{CONTROL_TEXT}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([CONTROL_TEXT], "no command is called '"),
        (["demo", f"--{CONTROL_TEXT}"], f"unrecognized arguments: --{ESCAPED_TEXT}"),
        (["demo", "--epochs", CONTROL_TEXT], "invalid int value: '"),
        (["predict", CONTROL_TEXT, "a.png"], f"{ESCAPED_TEXT}: the file does not exist"),
        (["methods", "--curves", f"{CONTROL_TEXT}.png/a.png"], ESCAPED_TEXT),
        (["train", "digits", "--run-folder", "run", "--method", CONTROL_TEXT], "is called '"),
    ],
)
def test_option_values_are_escaped(argv: list[str], message: str, tmp_path: Path) -> None:
    if argv[0] == "methods":
        (tmp_path / f"{CONTROL_TEXT}.png").write_text("")
    code, output = run_command(*argv, cwd=tmp_path)
    assert code == 2
    assert message in output


def test_warnings_logs_and_tracebacks_are_escaped() -> None:
    code, output = run_command(
        "methods",
        code="import lcrbnn.cli.methods\n"
        "def execute(args):\n"
        "    import logging, warnings\n"
        f"    warnings.warn({'warned' + CONTROL_TEXT!r})\n"
        f"    logging.warning({'logged' + CONTROL_TEXT!r})\n"
        f"    sys.stdout.writelines([{'lines' + CONTROL_TEXT!r}])\n"
        f"    raise RuntimeError({'raised' + CONTROL_TEXT!r})\n"
        "lcrbnn.cli.methods.execute = execute",
    )
    assert code == 1
    assert all(f"{text}{ESCAPED_TEXT}" in output for text in ("warned", "logged", "lines", "raised"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_is_redrawn_and_its_note_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for is_wrapped in (False, True):  # with and without the stream of the command line
        terminal = Terminal()
        progress = ProgressBar(2, PrintableStream(terminal) if is_wrapped else terminal)  # type: ignore[arg-type]  # not a TextIO
        progress.advance(lambda: 20 * CONTROL_TEXT)
        progress.print_line(CONTROL_TEXT)
        progress.advance(lambda: CONTROL_TEXT)
        lines = terminal.getvalue().replace("\r\x1b[K", "\n").splitlines()
        assert terminal.getvalue().count("\r\x1b[K") == 3
        assert lines[1].startswith("[############............] 1/2")
        assert all(len(line) < 80 for line in lines[:2])  # the note is cut after it is escaped, so that no line wraps
        assert lines[2] == ESCAPED_TEXT
        assert lines[-1].endswith(ESCAPED_TEXT)


def test_only_the_progress_bar_writes_control_characters_to_a_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    argv = [
        "train",
        "digits",
        "--model",
        "resnet8-double",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--run-folder",
        f"a{CONTROL_TEXT}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "lcrbnn", *argv]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 1 << 16):
            output += chunk
    except OSError:  # Linux raises it if the other end is closed
        pass
    os.close(controller)
    assert process.wait(timeout=60) == 0
    text = output.decode().replace("\r\n", "\n")
    assert "\r\x1b[K[###" in text
    assert f"a{ESCAPED_TEXT}: epoch 1" in text
    assert not CONTROL_CHARACTER.findall(text.replace("\r\x1b[K", ""))


def test_text_without_control_characters_is_unchanged() -> None:
    for text in ("plain\n\ttext", "σ ± − × …", "日本語 עברית", "👩\u200d🔬"):
        assert escape_control_characters(text) == text
    assert (
        escape_control_characters(CONTROL_TEXT + "\0\x85\u2028\u2069\ud800")
        == ESCAPED_TEXT + r"\x00\x85\u2028\u2069\ud800"
    )
    stream = PrintableStream(io.StringIO())
    assert stream.write(CONTROL_TEXT) == len(CONTROL_TEXT)  # the number of characters before escaping
