"""One of several processes that time what they exchange (bench.scaling starts them)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bench.processes import work
from bench.synthetic import known, noise
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build
from lcrbnn.train.ranks import Ranks, joined
from lcrbnn.train.step_eager import EagerStep


def timed(action: Callable[[], Any], ranks: Ranks, rounds: int) -> float:
    """Seconds, the least of rounds that all processes begin together: what others do on the machine only adds."""
    seen = []
    for _ in range(rounds + 2):
        ranks.most(0)
        began = time.perf_counter()
        action()
        seen.append(time.perf_counter() - began)
    return min(seen[2:])


def steps(settings: dict[str, Any], ranks: Ranks, rounds: int) -> dict[str, float]:
    """A training step together with the others, and one of the same images alone, while the others do the same."""
    spec = Spec().but(**settings)
    cpu = torch.device("cpu")
    found = {}
    for name, those in (("together", ranks), ("alone", Ranks())):
        local = spec if those.launched else spec.but(batch=spec.batch // ranks.size)
        with known(spec.data, noise(spec.data, spec.batch * 2)) as row:
            batches = Batches(row.load(None).train, row, cpu, those.rank, those.size)  # type: ignore[arg-type]
            parts = build(local, cpu, ranks=those)
            parts.model.train()
            step = EagerStep(local, parts, batches, those)

            def one(step: EagerStep = step) -> None:
                step.begin(0, 0, 0.0)
                step.take()

            found[name] = timed(one, ranks, rounds)
    return found


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Join the others."""
    torch.set_num_threads(1)
    held = joined("cpu", 120.0)
    ranks = held.__enter__()

    def do(told: Any) -> dict[str, Any]:
        sent = {}
        for size in told["bytes"]:
            message = torch.zeros(size // 4)
            sent[str(size)] = timed(lambda message=message: ranks.add(message), ranks, told["rounds"])  # type: ignore[misc]
        answer = {"sent": sent, "agree": timed(lambda: ranks.most(0, 0), ranks, 5 * told["rounds"])}
        answer["steps"] = {name: steps(settings, ranks, told["rounds"]) for name, settings in told["steps"].items()}
        return answer

    return do


if __name__ == "__main__":
    work(prepare)
