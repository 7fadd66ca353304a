"""A flipped bit in a file of a finished run is detected, or changes no reported number."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.runs.record import DIGEST_KEY, append_test_result, read_record, update_record, write_record
from lcrbnn.runs.run_folder import RunFolder
from tests.train.helpers import SMALL, train_small_run

FLIPS_PER_FILE = 40
FILES = ("spec.json", "log.jsonl", "record.json")
CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run with a test result."""
    torch.set_num_threads(1)
    run = train_small_run(tmp_path_factory.mktemp("runs") / "run", SMALL.replace(lcr_weight=1.0))
    assert main(["eval", str(run), "--test", *CPU]) == 0
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path / "run"


def make_flipped_copies(path: Path, count: int) -> list[bytes]:
    """Return copies of the file content, each with one flipped bit."""
    content, rng = path.read_bytes(), random.Random(path.name)
    copies = []
    for _ in range(count):
        index = rng.randrange(len(content))
        byte = bytes([content[index] ^ 1 << rng.randrange(8)])
        copies.append(content[:index] + byte + content[index + 1 :])
    return copies


def run_command(arguments: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the exit code, the written or printed text, and stderr."""
    out.unlink(missing_ok=True)
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return code, out.read_text() if out.exists() else captured.out, captured.err.strip()


def check_flips(
    arguments: list[str], out: Path, file: Path, count: int, capsys: pytest.CaptureFixture[str], *, max_accepted: float
) -> None:
    """Check that each flip is rejected with a one-line error that names the run, or gives unchanged output."""
    original = file.read_bytes()
    expected = run_command(arguments, out, capsys)
    assert expected[0] == 0
    num_accepted = 0
    for damaged in make_flipped_copies(file, count):
        file.write_bytes(damaged)
        code, text, stderr = run_command(arguments, out, capsys)
        if code == 0:
            assert text == expected[1]
            num_accepted += 1
        else:
            assert code == 2
            assert "\n" not in stderr
            assert str(file.parent) in stderr
            assert not out.exists()
        assert file.read_bytes() == damaged
        file.write_bytes(original)
    assert num_accepted <= max_accepted * count


@pytest.mark.parametrize("name", FILES)
def test_a_report_of_a_run_shows_no_number_of_a_damaged_file(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run.parent / "report.md"
    check_flips(["report", str(run), "-o", str(out)], out, run / name, FLIPS_PER_FILE, capsys, max_accepted=0.1)


def test_a_report_of_a_record_shows_no_number_of_a_damaged_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, record = run.parent / "report.md", run / "record.json"
    check_flips(["report", str(record), "-o", str(out)], out, record, FLIPS_PER_FILE, capsys, max_accepted=0.1)


@pytest.mark.parametrize("name", FILES)
def test_eval_shows_no_number_of_a_damaged_file(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    max_accepted = 1.0 if name == "log.jsonl" else 0.1  # eval does not read the log
    arguments = ["eval", str(run), *CPU]
    check_flips(arguments, run.parent / "none", run / name, FLIPS_PER_FILE // 4, capsys, max_accepted=max_accepted)


@pytest.mark.parametrize("name", FILES)
def test_a_plot_shows_no_number_of_a_damaged_file(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, file = run.parent / "plot.svg", run / name
    for damaged in make_flipped_copies(file, FLIPS_PER_FILE // 4):
        file.write_bytes(damaged)
        code, _, stderr = run_command(["plot", str(run), "-o", str(out)], out, capsys)
        try:
            unchanged = name != "log.jsonl" and json.loads(damaged) == json.loads((run / name).read_bytes())
        except ValueError:
            unchanged = False
        assert code == 2 or unchanged
        assert "\n" not in stderr


def test_every_bit_flip_in_a_record_is_rejected_or_renames_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, "test", {"lr": 0.1, "name": "größer"}, {"speed": 1e-17, "rows": [{"a": 1}, {"a": None}]})
    content, expected = path.read_bytes(), read_record(path)
    del expected[DIGEST_KEY]
    for index, byte in enumerate(content):
        for bit in range(8):
            path.write_bytes(content[:index] + bytes([byte ^ 1 << bit]) + content[index + 1 :])
            try:
                record = read_record(path)
            except InputError:
                continue
            unexpected = [name for name in record if name not in expected]
            assert len(unexpected) == 1  # the digest, maybe under a damaged name
            del record[unexpected[0]]
            assert record == expected


def test_a_log_of_another_run_is_rejected(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(run)
    lines = folder.read_log()
    lines[0]["seconds"] += 1
    folder.log_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = run.parent / "report.md"
    code, _, stderr = run_command(["report", str(run), "-o", str(out)], out, capsys)
    assert code == 2
    assert str(folder.log_file) in stderr
    assert main(["train", "--run-folder", str(run), "--resume", *CPU]) == 2


def test_a_record_without_a_digest_is_readable_and_gets_one_with_the_next_test_result(run: Path) -> None:
    path = run / "record.json"
    record = json.loads(path.read_text())
    del record[DIGEST_KEY], record["figures"]["log_sha256"]
    path.write_text(json.dumps(record))
    assert read_record(path) == record
    RunFolder(run).check_record_and_log()
    append_test_result(path, {"top1": 50.0})
    updated = read_record(path)
    assert DIGEST_KEY in updated
    path.write_text(path.read_text().replace("50.0", "95.0"))
    with pytest.raises(InputError, match="damaged"):
        read_record(path)


def test_nothing_is_added_to_a_damaged_record(run: Path) -> None:
    path = run / "record.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3', 1))
    before = path.read_bytes()
    for add in (lambda: append_test_result(path, {"top1": 1.0}), lambda: update_record(path, "layers", {})):
        with pytest.raises(InputError, match="damaged"):
            add()
    assert path.read_bytes() == before


def test_a_study_table_shows_no_number_of_a_damaged_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "small.toml"
    plan.write_text(
        '# One variant.\nrecipe = "digits"\nseeds = [0]\nbaseline = "none"\n'
        "[settings]\nepochs = 1\nbatch_size = 300\n[variants.none]\nlcr_weight = 1\n"
    )
    arguments = ["study", str(plan), "--records", str(tmp_path / "records"), *CPU]
    assert main([*arguments, "--runs-folder", str(tmp_path / "runs")]) == 0
    record = tmp_path / "records" / "none" / "seed-0.json"
    check_flips(arguments, tmp_path / "none", record, FLIPS_PER_FILE, capsys, max_accepted=0.1)
