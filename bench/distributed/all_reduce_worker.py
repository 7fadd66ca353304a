"""Worker process of bench.distributed.scaling. Several of them time their communication and training steps together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.training.synthetic_data import make_noise_split, register_dataset
from bench.worker_processes import serve_requests
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, Ranks, join_process_group
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.spec import TrainSpec


def time_actions(actions: Mapping[str, Callable[[], Any]], ranks: Ranks, rounds: int) -> dict[str, float]:
    """Return the minimum seconds of each action. All processes start an action together.

    Other programs can only make it longer.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 2):
        for name, action in actions.items():
            ranks.all_reduce_max(0)
            start_s = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start_s)
    return {name: min(times[2:]) for name, times in seconds.items()}


def make_steps(settings: dict[str, Any], ranks: Ranks) -> dict[str, Callable[[], None]]:
    """Return two training steps, the first with communication between processes, the second without."""
    spec = TrainSpec().replace(**settings)
    return {
        "together": _make_step(spec, ranks),
        "alone": _make_step(spec.replace(batch_size=spec.batch_size // ranks.size), SINGLE_PROCESS),
    }


def _make_step(spec: TrainSpec, ranks: Ranks) -> Callable[[], None]:
    cpu = torch.device("cpu")
    with register_dataset(spec.dataset, make_noise_split(spec.dataset, spec.batch_size * 2)) as dataset:
        batches = InMemoryBatches(dataset.load(Path()).train, dataset, cpu, ranks.rank, ranks.size)
        parts = build_training_parts(spec, cpu, ranks=ranks)
    parts.model.train()
    step = EagerStep(spec, parts, batches, ranks)

    def run_one_step() -> None:
        step.begin_epoch(0, 0, 0.0)
        step.run_step()

    return run_one_step


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Join the process group.

    Return the function that times messages, agreement between the processes, and training steps.
    """
    torch.set_num_threads(1)
    group = join_process_group("cpu", 120.0)
    ranks = group.__enter__()

    def handle_request(message: Any) -> dict[str, Any]:
        messages = {str(size): torch.zeros(size // 4) for size in message["bytes"]}
        sends = {name: partial(ranks.all_reduce_sum, message) for name, message in messages.items()}
        agree = {"agree": lambda: ranks.all_reduce_max(0, 0)}
        step_times = {
            name: time_actions(make_steps(settings, ranks), ranks, message["rounds"])
            for name, settings in message["steps"].items()
        }
        return {
            "sent": time_actions(sends, ranks, message["rounds"]),
            **time_actions(agree, ranks, 100),
            "steps": step_times,
        }

    return handle_request


if __name__ == "__main__":
    serve_requests(prepare)
