"""A bit that flips in a file of a finished run is noticed, or changes no number that is shown."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import DIGEST, add_to_record, note_reading, read_record, write_record
from tests.train.helpers import SMALL, small_run

FLIPS = 40  # per file
FILES = ("spec.json", "log.jsonl", "record.json")
CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has read its test images."""
    torch.set_num_threads(1)
    run = small_run(tmp_path_factory.mktemp("runs") / "run", SMALL.but(weight=1.0))
    assert main(["eval", str(run), "--final", *CPU]) == 0
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def flips(path: Path, count: int) -> list[bytes]:
    """The content of a file with one bit flipped, so many times."""
    content, draws = path.read_bytes(), random.Random(path.name)
    spoilt = []
    for _ in range(count):
        place = draws.randrange(len(content))
        byte = bytes([content[place] ^ 1 << draws.randrange(8)])
        spoilt.append(content[:place] + byte + content[place + 1 :])
    return spoilt


def shown(words: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, what was written or printed, and the last line of stderr."""
    out.unlink(missing_ok=True)
    capsys.readouterr()
    code = main(words)
    said = capsys.readouterr()
    return code, out.read_text() if out.exists() else said.out, said.err.strip()


def check_flips(
    words: list[str], out: Path, file: Path, count: int, capsys: pytest.CaptureFixture[str], *, accepted: float
) -> None:
    """Every flip is refused in one sentence that names the file's run, or shows exactly what was shown before."""
    whole = file.read_bytes()
    good = shown(words, out, capsys)
    assert good[0] == 0
    same = 0
    for spoilt in flips(file, count):
        file.write_bytes(spoilt)
        code, text, said = shown(words, out, capsys)
        if code == 0:
            assert text == good[1]
            same += 1
        else:
            assert code == 2
            assert "\n" not in said
            assert str(file.parent) in said
            assert not out.exists()
        assert file.read_bytes() == spoilt
        file.write_bytes(whole)
    assert same <= accepted * count


@pytest.mark.parametrize("name", FILES)
def test_a_report_of_a_run_shows_no_number_of_a_damaged_file(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run.parent / "report.md"
    check_flips(["report", str(run), "-o", str(out)], out, run / name, FLIPS, capsys, accepted=0.1)


def test_a_report_of_a_record_shows_no_number_of_a_damaged_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, record = run.parent / "report.md", run / "record.json"
    check_flips(["report", str(record), "-o", str(out)], out, record, FLIPS, capsys, accepted=0.1)


@pytest.mark.parametrize("name", FILES)
def test_eval_shows_no_number_of_a_damaged_file(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accepted = 1.0 if name == "log.jsonl" else 0.1  # eval does not read the log
    words = ["eval", str(run), *CPU]
    check_flips(words, run.parent / "none", run / name, FLIPS // 4, capsys, accepted=accepted)


@pytest.mark.parametrize("name", FILES)
def test_a_plot_shows_no_number_of_a_damaged_file(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, file = run.parent / "plot.svg", run / name
    for spoilt in flips(file, FLIPS // 4):
        file.write_bytes(spoilt)
        code, _, said = shown(["plot", str(run), "-o", str(out)], out, capsys)
        try:
            unchanged = name != "log.jsonl" and json.loads(spoilt) == json.loads((run / name).read_bytes())
        except ValueError:
            unchanged = False
        assert code == 2 or unchanged
        assert "\n" not in said


def test_every_flip_in_a_record_is_refused_or_changes_nothing_but_the_digests_name(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, "test", {"lr": 0.1, "name": "größer"}, {"speed": 1e-17, "rows": [{"a": 1}, {"a": None}]})
    content, good = path.read_bytes(), read_record(path)
    del good[DIGEST]
    for place, byte in enumerate(content):
        for bit in range(8):
            path.write_bytes(content[:place] + bytes([byte ^ 1 << bit]) + content[place + 1 :])
            try:
                record = read_record(path)
            except InputError:
                continue
            others = [name for name in record if name not in good]
            assert len(others) == 1  # the digest, perhaps by another name
            del record[others[0]]
            assert record == good


def test_a_log_of_another_run_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(run)
    lines = folder.read_log()
    lines[0]["seconds"] += 1
    folder.log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = run.parent / "report.md"
    code, _, said = shown(["report", str(run), "-o", str(out)], out, capsys)
    assert code == 2
    assert str(folder.log) in said
    assert main(["train", "--run", str(run), "--resume", *CPU]) == 2


def test_a_record_without_a_digest_stays_readable_and_has_one_after_the_next_reading(run: Path) -> None:
    path = run / "record.json"
    record = json.loads(path.read_text())
    del record[DIGEST], record["figures"]["log_sha256"]
    path.write_text(json.dumps(record))
    assert read_record(path) == record
    RunFolder(run).check_finished()
    note_reading(path, {"top1": 50.0})
    again = read_record(path)
    assert DIGEST in again
    path.write_text(path.read_text().replace("50.0", "95.0"))
    with pytest.raises(InputError, match="damaged"):
        read_record(path)


def test_nothing_is_added_to_a_damaged_record(run: Path) -> None:
    path = run / "record.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3', 1))
    before = path.read_bytes()
    for add in (lambda: note_reading(path, {"top1": 1.0}), lambda: add_to_record(path, "layers", {})):
        with pytest.raises(InputError, match="damaged"):
            add()
    assert path.read_bytes() == before


def test_a_table_of_a_study_shows_no_number_of_a_damaged_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "small.toml"
    plan.write_text(
        '# One arm.\nrecipe = "digits"\nseeds = [0]\ncontrol = "none"\n'
        "[settings]\nepochs = 1\nbatch = 300\n[arms.none]\nweight = 1\n"
    )
    words = ["study", str(plan), "--records", str(tmp_path / "records"), *CPU]
    assert main([*words, "--run", str(tmp_path / "runs")]) == 0
    record = tmp_path / "records" / "none" / "seed-0.json"
    check_flips(words, tmp_path / "none", record, FLIPS, capsys, accepted=0.1)
