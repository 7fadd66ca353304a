"""The progress bar and the record of a run."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lcrbnn.errors import InputError
from lcrbnn.nn.kernels.power_iteration import LCR_REVISION
from lcrbnn.runs import progress as progress_module
from lcrbnn.runs.old_names import SCHEMA
from lcrbnn.runs.progress import ProgressBar, format_duration
from lcrbnn.runs.record import (
    DIGEST_KEY,
    append_test_result,
    describe_environment,
    has_faulty_power_kernel,
    read_record,
    write_record,
)
from tests.runs.helpers import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Return the visible lines: the erase sequence restarts a line."""
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


class FakeClock:
    """Replaces the time module. Tests set the time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake_clock = FakeClock()
    monkeypatch.setattr(progress_module, "time", fake_clock)
    return fake_clock


def fail_if_called() -> str:
    raise AssertionError("the note is not shown, so make_note must not be called")


def test_terminal_shows_one_line_that_is_redrawn(clock: FakeClock) -> None:
    stream = Terminal()
    progress = ProgressBar(3, stream)
    for i in range(3):
        clock.now += 2
        progress.advance(lambda i=i: f"step {i}")
        if i == 0:
            assert stream.screen() == ["[########................] 1/3  4 s left  step 0"]
    assert stream.getvalue().count("\r") == 3
    assert stream.screen() == ["[########################] 3/3  0 s left  step 2", ""]


def test_terminal_is_redrawn_at_most_ten_times_per_second(clock: FakeClock) -> None:
    stream, noted_steps = Terminal(), []
    progress = ProgressBar(1000, stream)
    for i in range(1000):
        clock.now += 1 / 1024  # sums have no rounding errors
        progress.advance(lambda i=i: noted_steps.append(i) or f"step {i}")
    assert noted_steps == [*range(0, 1000, 103), 999]  # 103 steps are the first to take a tenth of a second
    assert stream.getvalue().count("\r") == len(noted_steps)
    assert stream.screen() == ["[########################] 1000/1000  0 s left  step 999", ""]


def test_without_a_terminal_each_tenth_prints_a_line() -> None:
    stream, noted_steps = io.StringIO(), []
    progress = ProgressBar(100, stream)
    for i in range(100):
        progress.advance(lambda i=i: noted_steps.append(i) or f"step {i}")
    lines = stream.getvalue().splitlines()
    assert noted_steps == list(range(9, 100, 10))
    assert [line.split("  ")[:2] for line in lines] == [[f"{i + 1}/100", f"step {i}"] for i in noted_steps]
    assert "\r" not in stream.getvalue()


def test_time_left_uses_the_speed_since_this_start(clock: FakeClock) -> None:
    stream = io.StringIO()
    progress = ProgressBar(10, stream, num_done=5)
    assert progress.format_time_left() == "?"
    clock.now += 2
    progress.advance(lambda: "a")
    assert stream.getvalue() == "6/10  a  8 s left\n"
    clock.now += 4
    progress.advance(lambda: "b")
    assert progress.format_time_left() == "9 s"


def test_time_left_ignores_a_slow_start_after_a_while(clock: FakeClock) -> None:
    progress = ProgressBar(1000, io.StringIO())
    for i in range(400):
        clock.now += 100 if i == 0 else 1  # the first step compiles
        progress.advance(fail_if_called if i % 100 != 99 else str)
        if i == 9:
            assert progress.format_time_left() == format_duration(109 / 10 * 990)  # no other speed is known yet
        if i == 300:
            assert progress.format_time_left() == format_duration(699)
    assert progress.format_time_left() == format_duration(600)
    assert len(progress._marks) < 64


def test_time_left_after_one_long_wait_uses_the_mean_speed(clock: FakeClock) -> None:
    progress = ProgressBar(200, io.StringIO())
    for i in range(101):
        clock.now += 100 if i == 100 else 0.01
        progress.advance(str)
    assert progress.format_time_left() == format_duration(101 / 101 * 99)


class BrokenPipe(io.StringIO):
    """A pipe without a reader."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("tenths", [True, False])
def test_progress_bar_ignores_a_broken_stream(tenths: bool, closed: bool) -> None:
    stream: io.StringIO = io.StringIO() if closed else BrokenPipe()
    progress = ProgressBar(10, stream, print_tenths=tenths)
    if closed:
        stream.close()
    for _ in range(10):
        progress.advance(lambda: "a")
        progress.print_status("b")
        progress.print_line("c")
    progress.close()
    assert progress.num_done == 10


def test_time_left_grows_during_a_stall(clock: FakeClock) -> None:
    progress = ProgressBar(10, io.StringIO())
    clock.now += 1
    progress.advance(str)
    clock.now += 99
    assert progress.format_time_left() == format_duration(900)


def test_without_tenths_only_print_status_prints_lines(clock: FakeClock) -> None:
    stream = io.StringIO()
    progress = ProgressBar(10, stream, print_tenths=False)
    for _ in range(5):
        clock.now += 1
        progress.advance(fail_if_called)
    assert stream.getvalue() == ""
    progress.print_status("epoch 1")
    assert stream.getvalue() == "epoch 1  5 s left\n"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_print_status_prints_nothing_if_a_bar_or_tenths_show_it(stream: io.StringIO) -> None:
    ProgressBar(10, stream).print_status("epoch 1")
    assert stream.getvalue() == ""


def test_print_line_prints_above_the_bar(clock: FakeClock) -> None:
    stream = Terminal()
    progress = ProgressBar(2, stream, print_tenths=False)
    progress.print_line("before")
    progress.advance(lambda: "a note that is much longer")
    clock.now += 1
    progress.print_line("between")
    progress.advance(lambda: "b")
    assert stream.screen() == ["before", "between", "[########################] 2/2  0 s left  b", ""]


def test_print_line_prints_plain_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    ProgressBar(2, stream, print_tenths=False).print_line("first")
    ProgressBar(2, stream).print_line("second")
    assert stream.getvalue() == "first\nsecond\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.6, "8 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_record_contains_settings_figures_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_record(path, "test", {"batch": 4}, {"speed": 1.5})
    record = json.loads(path.read_text())
    assert record["schema"] == SCHEMA
    assert (record["kind"], record["settings"], record["figures"]) == ("test", {"batch": 4}, {"speed": 1.5})
    assert {"commit", "torch", "cpu", "gpu", "python"} <= set(record["environment"])
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_record_layout_is_readable(tmp_path: Path) -> None:
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


def test_unwritable_record_raises_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a record cannot be written to"):
        write_record(tmp_path / "file" / "a.json", "test", {}, {})


def test_commit_is_read_from_the_environment_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCRBNN_COMMIT", "abc123")
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["commit"] == "abc123"


def test_append_test_result_adds_dated_results(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, "test", {"lr": 0.1, "name": "größer"}, {"speed": 1e-17})
    before = json.loads(path.read_text())
    start_date = datetime.now(UTC).date().isoformat()
    assert append_test_result(path, {"top1": 91.5}) == 1
    assert append_test_result(path, {"top1": 92.25}) == 2
    end_date = datetime.now(UTC).date().isoformat()
    after = json.loads(path.read_text())
    test_results = after.pop("test_results")
    assert before.pop(DIGEST_KEY) != after.pop(DIGEST_KEY)
    assert after == before
    assert list(after) == list(before)
    assert all(start_date <= test_result.pop("date") <= end_date for test_result in test_results)
    assert test_results == [{"top1": 91.5}, {"top1": 92.25}]
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_append_test_result_rejects_a_missing_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(
        InputError, match=f"^the record {re.escape(str(path))} cannot be read: No such file or directory$"
    ):
        append_test_result(path, {"top1": 91.5})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b'{"kind": "te', b"[]", b"3", b"\xff\xfe\xfd", b'{"test_results": 3}'])
def test_append_test_result_rejects_a_damaged_record(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} is no record: .+$"):
        append_test_result(path, {"top1": 91.5})
    assert path.read_bytes() == content


@pytest.mark.parametrize(("variant", "is_faulty"), [("default", True), ("none", False)])
def test_old_gpu_records_with_lcr_used_the_faulty_power_kernel(variant: str, is_faulty: bool) -> None:
    record = read_record(ROOT / "paper" / "results" / "cifar10-double" / variant / "seed-0.json")
    assert has_faulty_power_kernel(record) == is_faulty
    record["environment"]["lcr_revision"] = 1
    assert has_faulty_power_kernel(record) == is_faulty
    record["environment"]["lcr_revision"] = LCR_REVISION
    assert not has_faulty_power_kernel(record)


def test_cpu_records_and_new_records_used_no_faulty_power_kernel(tmp_path: Path) -> None:
    settings = {"lcr_weight": 1.0, "lcr_gradient_ratio": 0.0}
    write_record(tmp_path / "r.json", "train", settings, {"device": "cuda"})
    record = read_record(tmp_path / "r.json")
    assert record["environment"]["lcr_revision"] == LCR_REVISION
    assert not has_faulty_power_kernel(record)
    del record["environment"]["lcr_revision"]
    assert has_faulty_power_kernel(record)
    record["figures"]["device"] = "cpu"  # the computer may have a GPU that the run did not use
    assert not has_faulty_power_kernel(record)
