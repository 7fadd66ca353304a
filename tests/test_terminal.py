"""Control characters from files, names and options never reach the terminal, through the real command."""

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
from lcrbnn.engine.format import write_model
from lcrbnn.export import Input, export_model
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.terminal import PrintableStream, escape_control_characters
from tests.data.trees import as_zip, generated

ROOT = Path(__file__).parents[1]
TITLE = "\x1b]0;x\x07"  # sets the title of the window
COLOUR = "\x9b31m"  # turns the text red: CSI in one character of C1
EVIL = f"{TITLE}{COLOUR}\u202e\r\x7f"
SHOWN = r"\x1b]0;x\x07\x9b31m\u202e\x0d\x7f"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def run(*words: str, code: str = "", cwd: Path = ROOT) -> tuple[int, str]:
    """Exit code and both outputs of the real command; `code` runs before it. No control character is among them."""
    start = f"import sys; from lcrbnn.cli import run\n{code}\nsys.argv = ['lcrbnn', *sys.argv[1:]]\nrun()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", start, *words]
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=-1, stderr=-2, timeout=120, check=False)
    output = done.stdout.decode()
    assert not RAW.findall(output), output
    return done.returncode, output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    net = lcrbnn.network("resnet8-double", "irnet", classes=3).eval()
    path = tmp_path_factory.mktemp("model") / "small.bnn"
    seen = Input((8, 8, 3), (f"ant{EVIL}", f"bee{EVIL}", f"cat{EVIL}"), 255, (0.5,) * 3, (0.25,) * 3)
    write_model(path, export_model(net, seen, f"name{EVIL}"))
    return path


def saved(path: Path) -> Path:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    return path


def test_labels_and_names_of_pictures(model: Path, tmp_path: Path) -> None:
    saved(tmp_path / f"a{EVIL}.png")
    (tmp_path / f"b{EVIL}.png").write_bytes(b"")
    saved(Path(os.fsdecode(os.fsencode(tmp_path) + b"/c\x9b31m.png")))  # a name that is not UTF-8
    code, output = run("predict", str(model), str(tmp_path), "--top", "3")
    assert code == 1
    assert all(f"{name}{SHOWN} " in output for name in ("ant", "bee", "cat"))
    assert f"a{SHOWN}.png  " in output
    assert f"left out: {tmp_path}/b{SHOWN}.png is" in output
    assert r"c\udc9b31m.png" in output


def test_the_name_in_a_model_file_and_of_it(model: Path, tmp_path: Path) -> None:
    named = tmp_path / f"a{EVIL}.bnn"
    named.write_bytes(model.read_bytes())
    code, output = run("inspect", str(named))
    assert code == 0
    assert f"a{SHOWN}.bnn: name{SHOWN}, written by" in output


def test_entries_of_a_zip_file_and_files_that_keep_the_names_as_they_are(tmp_path: Path) -> None:
    whole = {name.replace("ant", f"ant{EVIL}"): content for name, content in generated(train=4, val=1).items()}
    words = ["train", "--data", "folder", "--side", "16", "--epochs", "1", "--batch", "4", "--device", "cpu"]
    words += ["--workers", "0", "--run", f"run{EVIL}", "--data-folder"]
    as_zip({**whole, f"train/ant{EVIL}/bad.JPEG": b"no image"}, tmp_path / "bad.zip")
    code, output = run(*words, str(tmp_path / "bad.zip"), cwd=tmp_path)
    assert code == 2
    assert f"ant{SHOWN}/bad.JPEG is broken" in output
    as_zip(whole, tmp_path / "good.zip")
    (tmp_path / f"run{EVIL}").rename(tmp_path / "failed")
    code, output = run(*words, str(tmp_path / "good.zip"), cwd=tmp_path)
    assert code == 0
    assert f"run{SHOWN}: epoch 1" in output
    assert json.loads((tmp_path / f"run{EVIL}" / "classes.json").read_text())[0] == f"ant{EVIL}"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([EVIL], "no command is called '"),
        (["demo", f"--{EVIL}"], f"unrecognized arguments: --{SHOWN}"),
        (["demo", "--epochs", EVIL], "invalid int value: '"),
        (["predict", EVIL, "a.png"], f"{SHOWN}: there is no such file"),
        (["methods", "--curves", f"{EVIL}.png/a.png"], SHOWN),
        (["train", "digits", "--run", "run", "--method", EVIL], "is called '"),
    ],
)
def test_values_of_options(words: list[str], shown: str, tmp_path: Path) -> None:
    if words[0] == "methods":
        (tmp_path / f"{EVIL}.png").write_text("")
    code, output = run(*words, cwd=tmp_path)
    assert code == 2
    assert shown in output


def test_warnings_logs_and_tracebacks() -> None:
    code, output = run(
        "methods",
        code="import lcrbnn.cli.methods\n"
        "def execute(args):\n"
        "    import logging, warnings\n"
        f"    warnings.warn({'warned' + EVIL!r})\n"
        f"    logging.warning({'logged' + EVIL!r})\n"
        f"    sys.stdout.writelines([{'lines' + EVIL!r}])\n"
        f"    raise RuntimeError({'raised' + EVIL!r})\n"
        "lcrbnn.cli.methods.execute = execute",
    )
    assert code == 1
    assert all(f"{what}{SHOWN}" in output for what in ("warned", "logged", "lines", "raised"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_redrawn_and_its_note_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for wrapped in (False, True):  # as the command line has it, and as a caller from Python
        terminal = Terminal()
        progress = Progress(2, PrintableStream(terminal) if wrapped else terminal)  # type: ignore[arg-type]  # as print
        progress.advance(lambda: 20 * EVIL)
        progress.say(EVIL)
        progress.advance(lambda: EVIL)
        lines = terminal.getvalue().replace("\r\x1b[K", "\n").splitlines()
        assert terminal.getvalue().count("\r\x1b[K") == 3
        assert lines[1].startswith("[############............] 1/2")
        assert all(len(line) < 80 for line in lines[:2])  # cut after it is escaped: no line wraps
        assert lines[2] == SHOWN
        assert lines[-1].endswith(SHOWN)


def test_a_terminal_gets_the_progress_bar_of_a_command_and_no_other_control_character(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["train", "digits", "--model", "resnet8-double", "--epochs", "1", "--device", "cpu", "--run", f"a{EVIL}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "lcrbnn", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 1 << 16):
            output += piece
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = output.decode().replace("\r\n", "\n")
    assert "\r\x1b[K[###" in text
    assert f"a{SHOWN}: epoch 1" in text
    assert not RAW.findall(text.replace("\r\x1b[K", ""))


def test_text_without_control_characters_stays_as_it_is() -> None:
    for text in ("plain\n\ttext", "σ ± − × …", "日本語 עברית", "👩\u200d🔬"):
        assert escape_control_characters(text) == text
    assert escape_control_characters(EVIL + "\0\x85\u2028\u2069\ud800") == SHOWN + r"\x00\x85\u2028\u2069\ud800"
    stream = PrintableStream(io.StringIO())
    assert stream.write(EVIL) == len(EVIL)  # as every text stream counts
