"""Which kernels a training step runs, and how long each takes."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

SHOWN = 70


class Kernels:
    """Profiles so many steps: from the first call of `seen`, which comes after a step, to the one that answers True."""

    def __init__(self, steps: int) -> None:
        """Nothing is profiled yet."""
        self.steps, self.figures, self._taken = steps, dict[str, Any](), -1
        self._profile = profile(activities=[ProfilerActivity.CUDA])

    def seen(self) -> bool:
        """Whether these were all."""
        self._taken += 1
        if self._taken == 0:
            torch.cuda.synchronize()
            self._profile.__enter__()
        elif self._taken == self.steps:
            torch.cuda.synchronize()
            self._profile.__exit__(None, None, None)
            self.figures = self._table()
        return self._taken >= self.steps

    def _table(self) -> dict[str, Any]:
        rows = sorted(self._profile.key_averages(), key=lambda row: -row.self_device_time_total)
        named: dict[str, list[float]] = {}
        for row in rows:  # kernels whose names begin alike count as one
            entry = named.setdefault(row.key[:100], [0.0, 0.0])
            entry[0] += row.self_device_time_total / self.steps
            entry[1] += row.count / self.steps
        top = sorted(named.items(), key=lambda item: -item[1][0])[:SHOWN]
        return {
            "count": sum(row.count for row in rows) // self.steps,
            "us": sum(row.self_device_time_total for row in rows) / self.steps,
            "top": {name: [round(us), round(count)] for name, (us, count) in top},
        }


def kernel_lines(figures: dict[str, Any]) -> str:
    """The table for reading."""
    head = f"{figures['count']} kernels, {figures['us']:.0f} us of device time a step"
    return "\n".join([head, *(f"{us:6} us {count:4} x {name}" for name, (us, count) in figures["top"].items())])
