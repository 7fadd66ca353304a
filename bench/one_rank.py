"""One of several processes that time what they exchange (bench.scaling starts them)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.processes import work
from bench.synthetic import known, noise
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build
from lcrbnn.train.ranks import ALONE, Ranks, joined
from lcrbnn.train.step_eager import EagerStep


def timed(actions: Mapping[str, Callable[[], Any]], ranks: Ranks, rounds: int) -> dict[str, float]:
    """Seconds of each action, in turns that all processes begin together: the least, for others only add to it."""
    seen: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 2):
        for name, action in actions.items():
            ranks.most(0)
            began = time.perf_counter()
            action()
            seen[name].append(time.perf_counter() - began)
    return {name: min(times[2:]) for name, times in seen.items()}


def steps(settings: dict[str, Any], ranks: Ranks) -> dict[str, Callable[[], None]]:
    """A training step together with the others, and one of as many images alone, while the others do the same."""
    spec = Spec().but(**settings)
    return {
        "together": _step(spec, ranks),
        "alone": _step(spec.but(batch=spec.batch // ranks.size), ALONE),
    }


def _step(spec: Spec, ranks: Ranks) -> Callable[[], None]:
    cpu = torch.device("cpu")
    with known(spec.data, noise(spec.data, spec.batch * 2)) as row:
        batches = Batches(row.load(Path()).train, row, cpu, ranks.rank, ranks.size)
        parts = build(spec, cpu, ranks=ranks)
    parts.model.train()
    step = EagerStep(spec, parts, batches, ranks)

    def one() -> None:
        step.begin(0, 0, 0.0)
        step.take()

    return one


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Join the others."""
    torch.set_num_threads(1)
    held = joined("cpu", 120.0)
    ranks = held.__enter__()

    def do(told: Any) -> dict[str, Any]:
        messages = {str(size): torch.zeros(size // 4) for size in told["bytes"]}
        sends = {name: partial(ranks.add, message) for name, message in messages.items()}
        agree = {"agree": lambda: ranks.most(0, 0)}
        trained = {
            name: timed(steps(settings, ranks), ranks, told["rounds"]) for name, settings in told["steps"].items()
        }
        return {"sent": timed(sends, ranks, told["rounds"]), **timed(agree, ranks, 100), "steps": trained}

    return do


if __name__ == "__main__":
    work(prepare)
