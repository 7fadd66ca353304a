from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.progress import Progress, duration
from lcrbnn.runs.record import environment, write_record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_ends_when_all_is_done() -> None:
    stream = Terminal()
    progress = Progress(3, stream)
    for i in range(3):
        progress.advance(f"step {i}")
    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().count("\n") == 1
    assert "[########................] 1/3  step 0" in stream.getvalue()
    assert stream.getvalue().endswith("[########################] 3/3  step 2  0 s left\n")


def test_without_a_terminal_every_tenth_part_is_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(100, stream)
    for i in range(100):
        progress.advance(f"step {i}")
    assert len(stream.getvalue().splitlines()) == 10
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.6, "8 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_durations_read_like_a_person_says_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_record_says_where_and_with_what_and_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_record(path, "test", {"batch": 4}, {"speed": 1.5})
    record = json.loads(path.read_text())
    assert record["schema"] == 1
    assert (record["kind"], record["settings"], record["figures"]) == ("test", {"batch": 4}, {"speed": 1.5})
    assert {"commit", "torch", "cpu", "gpu", "python"} <= set(record["environment"])
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a record cannot be written to"):
        write_record(tmp_path / "file" / "a.json", "test", {}, {})


def test_the_commit_can_be_told_where_there_is_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCRBNN_COMMIT", "abc123")
    monkeypatch.setenv("PATH", "")
    assert environment()["commit"] == "abc123"
