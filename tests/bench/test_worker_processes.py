from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.worker_processes import Worker, serve_requests


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    print("printed text must not become a response")
    return lambda message: {"quotient": message / job["by"]}


def start_worker(tmp_path: Path, by: int) -> Worker:
    return Worker("tests.bench.test_worker_processes", {"by": by}, tmp_path / "log", {})


def test_a_worker_waits_for_its_request_and_returns_a_result(tmp_path: Path) -> None:
    worker = start_worker(tmp_path, 2)
    worker.wait_until_ready(60)
    assert worker.process.poll() is None
    worker.send_only_request(6)
    assert worker.wait_for_result(60) == {"quotient": 3}
    assert worker.process.returncode == 0


def test_a_failed_worker_returns_the_end_of_its_log(tmp_path: Path) -> None:
    worker = start_worker(tmp_path, 0)
    worker.wait_until_ready(60)
    worker.send_only_request(6)
    assert "ZeroDivisionError" in worker.wait_for_result(60)["error"]


def test_a_worker_is_killed_after_its_timeout(tmp_path: Path) -> None:
    worker = start_worker(tmp_path, 1)
    assert "exited with -9" in worker.wait_for_result(0.0)["error"]


if __name__ == "__main__":
    serve_requests(prepare)
