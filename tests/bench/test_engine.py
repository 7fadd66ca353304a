"""The engine's benchmark: processes take turns, and what is compared is the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.deployed import DEPLOYED, binary_convolutions
from bench.engine import LIMITS, TURN, apart, entries, figures_of, in_turns, speedup
from bench.one_runtime import RUNTIMES
from bench.processes import Worker
from lcrbnn.engine import Node, reference
from lcrbnn.engine.check import shapes
from lcrbnn.engine.format import write_model
from lcrbnn.errors import Failed
from tests.engine import made, window
from tests.engine import random_keys as keys

RNG = np.random.default_rng


class Answers:
    """A worker that writes down who was asked."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self.asked = name, asked

    def ask(self, calls: int, seconds: float) -> dict[str, Any]:
        self.asked.append(self.name)
        return {"ms": [1.0] * calls, "busy_s": 0.0, "idle_s": 0.5, "kind": self.name}


def test_runtimes_take_turns_until_there_are_enough_calls() -> None:
    asked: list[str] = []
    workers: Any = {name: Answers(name, asked) for name in "ab"}
    taken, last = in_turns(workers, 2 * TURN + 1)
    assert "".join(asked) == "ababab"
    assert len(taken["a"]) == len(taken["b"]) == 3 * TURN
    assert figures_of([4.0, 2.0, 9.0], 2.0, last["b"]) == {
        "median": 4.0,
        "best": 2.0,
        "calls": 3,
        "ratio": 2.0,
        "idle_s": 0.5,
        "kind": "b",
    }


def test_a_process_makes_calls_whenever_it_is_told(tmp_path: Path) -> None:
    model = made((6, 5, 3), Node("conv", "conv", (0,), keys(RNG(0), "conv", 3, 4, window((3, 3)))))
    write_model(tmp_path / "m.bnn", model)
    job = {"runtime": "onnxruntime", "model": str(tmp_path / "m.bnn"), "threads": 1, "batch": 2, "part": False}
    worker = Worker("bench.one_runtime", {**job, "answers": str(tmp_path / "a.npy")}, tmp_path / "log", {})
    worker.ready(60)
    first, second = worker.ask(3, 60), worker.ask(2, 60)
    with pytest.raises(Failed, match="TypeError"):
        worker.ask("many", 60)
    assert (len(first["ms"]), len(second["ms"])) == (3, 2)
    assert second["busy_s"] >= first["busy_s"] > 0
    wanted = reference.run(model, RNG(0).standard_normal((2, 6, 5, 3), np.float32))
    assert np.allclose(np.load(tmp_path / "a.npy"), wanted, atol=1e-4)


def test_limits_and_rows_name_runtimes_that_there_are() -> None:
    for limits in LIMITS.values():
        assert set(limits) <= set(RUNTIMES)
    for row in DEPLOYED.values():
        assert {name for name, _ in row.runtimes} <= set(RUNTIMES)
        assert {kind for _, kind in row.runtimes} | {"binary"} == set(row.models)
        found = entries(row, {"g++": Path("a"), "clang++": Path("b")}, LIMITS["avx2"])
        assert [e.name for e in found[:2]] == ["lcrbnn g++", "lcrbnn clang++"]
        assert len({e.name for e in found}) == len(found)
        assert found[0].environment == {"LCRBNN_KERNEL": "avx2", "LCRBNN_ENGINE": "a"}


def test_the_convolutions_are_those_of_a_resnet() -> None:
    model = binary_convolutions()
    products = sum(
        int(np.prod(s)) * n.keys["weight"].n for n, s in zip(model.nodes[:16], shapes(model)[1:17], strict=True)
    )
    assert len(model.nodes) == 17
    assert round(products / 1e6) == 1676


def test_differences_and_ratios() -> None:
    assert apart([np.array([1.0, -4.0]), np.array([1.0, -5.0]), np.array([1.5, -4.0])]) == 0.25
    found = {
        "load_ms": 1.0,
        "1 threads, 1 images": {"apart": 0.0, "lcrbnn g++": {"median": 6.0}},
        "2 threads, 1 images": {"apart": 0.0, "lcrbnn g++": {"median": 4.0}},
        "1 threads, 8 images": {"apart": 0.0, "lcrbnn g++": {"median": 6.0}},
    }
    assert speedup(found) == {"1 images": 1.5}
