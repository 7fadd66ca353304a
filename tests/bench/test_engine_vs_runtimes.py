"""The engine benchmark: workers take turns, and all runtimes run the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.deploy.deployed_networks import ENGINE_CASES, make_binary_convolutions
from bench.deploy.engine_vs_runtimes import (
    CALLS_PER_TURN,
    INSTRUCTION_LIMITS,
    call_in_turns,
    compute_two_thread_speedup,
    list_entries,
    max_relative_difference,
    summarize_runtime,
)
from bench.deploy.runtime_worker import RUNTIME_PREPARERS
from bench.worker_processes import Worker
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import write_model
from lcrbnn.deploy.engine.graph import Node
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.errors import RunFailed
from tests.deploy.engine.small_models import draw_attributes as keys
from tests.deploy.engine.small_models import make_model, make_window

RNG = np.random.default_rng


class FakeWorker:
    """A worker that logs its requests."""

    def __init__(self, name: str, request_log: list[str]) -> None:
        self.name, self.request_log = name, request_log

    def request(self, calls: int, seconds: float) -> dict[str, Any]:
        self.request_log.append(self.name)
        return {"ms": [1.0] * calls, "busy_s": 0.0, "idle_s": 0.5, "kind": self.name}


def test_runtimes_are_called_in_turns() -> None:
    request_log: list[str] = []
    workers: Any = {name: FakeWorker(name, request_log) for name in "ab"}
    times_ms, last_results = call_in_turns(workers, 2 * CALLS_PER_TURN + 1)
    assert "".join(request_log) == "ababab"
    assert len(times_ms["a"]) == len(times_ms["b"]) == 3 * CALLS_PER_TURN
    assert summarize_runtime([4.0, 2.0, 9.0], 2.0, last_results["b"]) == {
        "median": 4.0,
        "best": 2.0,
        "calls": 3,
        "ratio": 2.0,
        "idle_s": 0.5,
        "kind": "b",
    }


def test_a_runtime_worker_times_the_requested_calls(tmp_path: Path) -> None:
    model = make_model((6, 5, 3), Node("conv", "conv", (0,), keys(RNG(0), "conv", 3, 4, make_window((3, 3)))))
    write_model(tmp_path / "m.bnn", model)
    job = {"runtime": "onnxruntime", "model": str(tmp_path / "m.bnn"), "threads": 1, "batch": 2, "part": False}
    worker = Worker("bench.deploy.runtime_worker", {**job, "answers": str(tmp_path / "a.npy")}, tmp_path / "log", {})
    worker.wait_until_ready(60)
    first, second = worker.request(3, 60), worker.request(2, 60)
    with pytest.raises(RunFailed, match="TypeError"):
        worker.request("many", 60)
    assert (len(first["ms"]), len(second["ms"])) == (3, 2)
    assert second["busy_s"] >= first["busy_s"] > 0
    expected = reference.run_reference(model, RNG(0).standard_normal((2, 6, 5, 3), np.float32))
    assert np.allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-4)


def test_limits_and_cases_refer_to_existing_runtimes() -> None:
    for limits in INSTRUCTION_LIMITS.values():
        assert set(limits) <= set(RUNTIME_PREPARERS)
    for case in ENGINE_CASES.values():
        assert {name for name, _ in case.runtimes} <= set(RUNTIME_PREPARERS)
        assert {kind for _, kind in case.runtimes} | {"binary"} == set(case.model_makers)
        entries = list_entries(case, {"g++": Path("a"), "clang++": Path("b")}, INSTRUCTION_LIMITS["avx2"])
        assert [e.name for e in entries[:2]] == ["lcrbnn g++", "lcrbnn clang++"]
        assert len({e.name for e in entries}) == len(entries)
        assert entries[0].environment == {"LCRBNN_KERNEL": "avx2", "LCRBNN_ENGINE": "a"}


def test_binary_convolutions_have_the_operations_of_a_resnet18() -> None:
    model = make_binary_convolutions()
    products = sum(
        int(np.prod(s)) * n.attributes["weight"].n
        for n, s in zip(model.nodes[:16], infer_shapes(model)[1:17], strict=True)
    )
    assert len(model.nodes) == 17
    assert round(products / 1e6) == 1676


def test_max_difference_and_two_thread_speedup() -> None:
    assert max_relative_difference([np.array([1.0, -4.0]), np.array([1.0, -5.0]), np.array([1.5, -4.0])]) == 0.25
    figures = {
        "load_ms": 1.0,
        "1 threads, 1 images": {"apart": 0.0, "lcrbnn g++": {"median": 6.0}},
        "2 threads, 1 images": {"apart": 0.0, "lcrbnn g++": {"median": 4.0}},
        "1 threads, 8 images": {"apart": 0.0, "lcrbnn g++": {"median": 6.0}},
    }
    assert compute_two_thread_speedup(figures) == {"1 images": 1.5}
