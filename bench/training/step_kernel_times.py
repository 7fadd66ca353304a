"""Measure the device time of each GPU kernel in training steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MAX_KERNELS_SHOWN = 70


class KernelProfiler:
    """Profiler of `num_steps` steps. The first call of `record_step`, after a warm-up step, starts the profiler."""

    def __init__(self, num_steps: int) -> None:
        """Create the profiler, which does not run yet."""
        self.num_steps, self.figures, self._steps_done = num_steps, dict[str, Any](), -1
        self._profile = profile(activities=[ProfilerActivity.CUDA])

    def record_step(self) -> bool:
        """Count a step. Call this after each step. Return True once all steps are profiled."""
        self._steps_done += 1
        if self._steps_done == 0:
            torch.cuda.synchronize()
            self._profile.__enter__()
        elif self._steps_done == self.num_steps:
            torch.cuda.synchronize()
            self._profile.__exit__(None, None, None)
            self.figures = self._summarize()
        return self._steps_done >= self.num_steps

    def _summarize(self) -> dict[str, Any]:
        rows = sorted(self._profile.key_averages(), key=lambda row: -row.self_device_time_total)
        times_by_name: dict[str, list[float]] = {}
        for row in rows:  # kernels whose names start with the same 100 characters count as one kernel
            entry = times_by_name.setdefault(row.key[:100], [0.0, 0.0])
            entry[0] += row.self_device_time_total / self.num_steps
            entry[1] += row.count / self.num_steps
        top = sorted(times_by_name.items(), key=lambda item: -item[1][0])[:MAX_KERNELS_SHOWN]
        return {
            "count": sum(row.count for row in rows) // self.num_steps,
            "us": sum(row.self_device_time_total for row in rows) / self.num_steps,
            "top": {name: [round(us), round(count)] for name, (us, count) in top},
        }


def format_kernel_table(figures: dict[str, Any]) -> str:
    """Return the kernel table as text."""
    header = f"{figures['count']} kernels, {figures['us']:.0f} us of device time per step"
    return "\n".join([header, *(f"{us:6} us {count:4} x {name}" for name, (us, count) in figures["top"].items())])
