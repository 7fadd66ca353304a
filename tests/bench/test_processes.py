from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.processes import Worker, work


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    print("this is no answer")
    return lambda told: {"quotient": told / job["by"]}


def worker(tmp_path: Path, by: int) -> Worker:
    return Worker("tests.bench.test_processes", {"by": by}, tmp_path / "log", {})


def test_a_process_waits_for_its_turn_and_answers(tmp_path: Path) -> None:
    one = worker(tmp_path, 2)
    one.ready(60)
    assert one.process.poll() is None
    one.go(6)
    assert one.answer(60) == {"quotient": 3}
    assert one.process.returncode == 0


def test_a_process_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    one = worker(tmp_path, 0)
    one.ready(60)
    one.go(6)
    assert "ZeroDivisionError" in one.answer(60)["error"]


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    one = worker(tmp_path, 1)
    assert "ended with -9" in one.answer(0.0)["error"]


if __name__ == "__main__":
    work(prepare)
