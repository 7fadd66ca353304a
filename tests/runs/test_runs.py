"""The progress of a run and its record."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lcrbnn.errors import InputError
from lcrbnn.retention import LCR_REVISION
from lcrbnn.runs import progress as progress_module
from lcrbnn.runs.progress import Progress, duration
from lcrbnn.runs.record import DIGEST, environment, has_faulty_power_kernel, note_reading, read_record, write_record
from tests.runs.helpers import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """What a person sees: a carriage return with an erase begins the line anew."""
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


class Clock:
    """Stands in for the time module: time passes only when a test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_module, "time", made)
    return made


def unasked() -> str:
    raise AssertionError("the note is not shown, so it must not be asked for")


def test_a_terminal_gets_one_line_that_ends_when_all_is_done(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(3, stream)
    for i in range(3):
        clock.now += 2
        progress.advance(lambda i=i: f"step {i}")
        if i == 0:
            assert stream.screen() == ["[########................] 1/3  4 s left  step 0"]
    assert stream.getvalue().count("\r") == 3
    assert stream.screen() == ["[########################] 3/3  0 s left  step 2", ""]


def test_a_terminal_is_redrawn_ten_times_a_second_and_at_the_end_and_asks_for_no_other_note(clock: Clock) -> None:
    stream, asked = Terminal(), []
    progress = Progress(1000, stream)
    for i in range(1000):
        clock.now += 1 / 1024  # a sum without rounding
        progress.advance(lambda i=i: asked.append(i) or f"step {i}")
    assert asked == [*range(0, 1000, 103), 999]  # 103 of them are the first to last a tenth of a second
    assert stream.getvalue().count("\r") == len(asked)
    assert stream.screen() == ["[########################] 1000/1000  0 s left  step 999", ""]


def test_without_a_terminal_every_tenth_part_is_a_line_and_only_its_note_is_asked_for() -> None:
    stream, asked = io.StringIO(), []
    progress = Progress(100, stream)
    for i in range(100):
        progress.advance(lambda i=i: asked.append(i) or f"step {i}")
    lines = stream.getvalue().splitlines()
    assert asked == list(range(9, 100, 10))
    assert [line.split("  ")[:2] for line in lines] == [[f"{i + 1}/100", f"step {i}"] for i in asked]
    assert "\r" not in stream.getvalue()


def test_the_time_left_is_that_of_the_pace_since_this_start(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(10, stream, done=5)
    assert progress.left() == "?"
    clock.now += 2
    progress.advance(lambda: "a")
    assert stream.getvalue() == "6/10  a  8 s left\n"
    clock.now += 4
    progress.advance(lambda: "b")
    assert progress.left() == "9 s"


def test_a_slow_start_is_forgotten_once_it_is_three_quarters_of_the_time(clock: Clock) -> None:
    progress = Progress(1000, io.StringIO())
    for i in range(400):
        clock.now += 100 if i == 0 else 1  # the first step compiles
        progress.advance(unasked if i % 100 != 99 else str)
        if i == 9:
            assert progress.left() == duration(109 / 10 * 990)  # nothing else is known yet
        if i == 300:
            assert progress.left() == duration(699)
    assert progress.left() == duration(600)
    assert len(progress._marks) < 64


def test_one_long_wait_counts_no_more_than_it_took(clock: Clock) -> None:
    progress = Progress(200, io.StringIO())
    for i in range(101):
        clock.now += 100 if i == 100 else 0.01
        progress.advance(str)
    assert progress.left() == duration(101 / 101 * 99)


class Gone(io.StringIO):
    """A pipe whose reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("tenths", [True, False])
def test_work_goes_on_when_nobody_reads(tenths: bool, closed: bool) -> None:
    stream: io.StringIO = io.StringIO() if closed else Gone()
    progress = Progress(10, stream, tenths=tenths)
    if closed:
        stream.close()
    for _ in range(10):
        progress.advance(lambda: "a")
        progress.tell("b")
        progress.say("c")
    progress.close()
    assert progress.done == 10


def test_what_stalls_is_judged_by_the_whole_time(clock: Clock) -> None:
    progress = Progress(10, io.StringIO())
    clock.now += 1
    progress.advance(str)
    clock.now += 99
    assert progress.left() == duration(900)


def test_without_tenths_only_what_is_told_is_a_line(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(10, stream, tenths=False)
    for _ in range(5):
        clock.now += 1
        progress.advance(unasked)
    assert stream.getvalue() == ""
    progress.tell("epoch 1")
    assert stream.getvalue() == "epoch 1  5 s left\n"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_nothing_is_told_where_a_bar_or_the_tenths_tell_it(stream: io.StringIO) -> None:
    Progress(10, stream).tell("epoch 1")
    assert stream.getvalue() == ""


def test_what_must_be_seen_stands_above_the_bar(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(2, stream, tenths=False)
    progress.say("before")
    progress.advance(lambda: "a note that is much longer")
    clock.now += 1
    progress.say("between")
    progress.advance(lambda: "b")
    assert stream.screen() == ["before", "between", "[########################] 2/2  0 s left  b", ""]


def test_what_must_be_seen_is_a_plain_line_elsewhere() -> None:
    stream = io.StringIO()
    Progress(2, stream, tenths=False).say("look")
    Progress(2, stream).say("here")
    assert stream.getvalue() == "look\nhere\n"


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


def test_a_record_can_be_read_by_a_person(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    figures = {
        "ratios": [0.5, 1.5],
        "rows": [{"epoch": 1, "ratios": [1]}, {"epoch": 2, "ratios": None}],
        "pairs": [[1, 2], [3, 4]],
        "none": {},
        "tuple": (1, 2),
        "in": {'σ "B"': True, "deep": {"list": []}},
    }
    write_record(path, "test", {}, figures)
    text = path.read_text()
    assert json.loads(text)["figures"] == {**figures, "tuple": [1, 2]}
    assert text.endswith(
        """ "figures": {
  "ratios": [0.5, 1.5],
  "rows": [
   {"epoch": 1, "ratios": [1]},
   {"epoch": 2, "ratios": null}
  ],
  "pairs": [
   [1, 2],
   [3, 4]
  ],
  "none": {},
  "tuple": [1, 2],
  "in": {
   "\\u03c3 \\"B\\"": true,
   "deep": {
    "list": []
   }
  }
 }
}
"""
    )


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a record cannot be written to"):
        write_record(tmp_path / "file" / "a.json", "test", {}, {})


def test_the_commit_can_be_told_where_there_is_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCRBNN_COMMIT", "abc123")
    monkeypatch.setenv("PATH", "")
    assert environment()["commit"] == "abc123"


def test_readings_are_added_to_a_record_with_their_dates_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, "test", {"lr": 0.1, "name": "größer"}, {"speed": 1e-17})
    before = json.loads(path.read_text())
    began = datetime.now(UTC).date().isoformat()
    assert note_reading(path, {"top1": 91.5}) == 1
    assert note_reading(path, {"top1": 92.25}) == 2
    ended = datetime.now(UTC).date().isoformat()
    after = json.loads(path.read_text())
    readings = after.pop("readings")
    assert before.pop(DIGEST) != after.pop(DIGEST)
    assert after == before
    assert list(after) == list(before)
    assert all(began <= reading.pop("date") <= ended for reading in readings)
    assert readings == [{"top1": 91.5}, {"top1": 92.25}]
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_reading_of_a_record_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(
        InputError, match=f"^the record {re.escape(str(path))} cannot be read: No such file or directory$"
    ):
        note_reading(path, {"top1": 91.5})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b'{"kind": "te', b"[]", b"3", b"\xff\xfe\xfd", b'{"readings": 3}'])
def test_a_reading_of_a_broken_record_is_refused_and_the_file_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} is no record: .+$"):
        note_reading(path, {"top1": 91.5})
    assert path.read_bytes() == content


@pytest.mark.parametrize(("arm", "faulty"), [("default", True), ("none", False)])
def test_gpu_records_of_retention_without_a_revision_used_the_faulty_power_kernel(arm: str, faulty: bool) -> None:
    record = read_record(ROOT / "results" / "cifar10-double" / arm / "seed-0.json")
    assert has_faulty_power_kernel(record) == faulty
    record["environment"]["lcr_revision"] = 1
    assert has_faulty_power_kernel(record) == faulty
    record["environment"]["lcr_revision"] = LCR_REVISION
    assert not has_faulty_power_kernel(record)


def test_cpu_records_and_new_ones_did_not_use_it(tmp_path: Path) -> None:
    settings = {"weight": 1.0, "share": 0.0}
    write_record(tmp_path / "r.json", "train", settings, {"device": "cuda"})
    record = read_record(tmp_path / "r.json")
    assert record["environment"]["lcr_revision"] == LCR_REVISION
    assert not has_faulty_power_kernel(record)
    del record["environment"]["lcr_revision"]
    assert has_faulty_power_kernel(record)
    record["figures"]["device"] = "cpu"  # the machine may have a GPU that the run did not use
    assert not has_faulty_power_kernel(record)
