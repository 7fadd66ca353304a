"""RUNTIMES contains other runtimes that can run a .bnn model. A timer calls the runtimes in alternation."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.deploy.engine.graph import BnnModel

RunBatch = Callable[[np.ndarray], np.ndarray]  # float32 images (n, h, w, c) -> the first output, such as logits


@dataclass(frozen=True)
class Runtime:
    """A row of RUNTIMES: required packages, module of `make_runner`, its argument `kind`, and the network as text."""

    packages: tuple[str, ...]
    module: str
    kind: str
    description: str

    def find_missing_package(self) -> str | None:
        """Return a required package that is not installed, or None."""
        return next((name for name in self.packages if importlib.util.find_spec(name) is None), None)

    def make_call(self, model: BnnModel, threads: int, batch: int) -> RunBatch:
        """Return a function that runs batches of this size."""
        return import_module(f"lcrbnn.deploy.benchmark.{self.module}").make_runner(model, threads, batch, self.kind)


RUNTIMES: dict[str, Runtime] = {
    "onnxruntime": Runtime(("onnx", "onnxruntime"), "onnxruntime_backend", "float32", "this network in float32"),
    "onnxruntime int8": Runtime(("onnx", "onnxruntime"), "onnxruntime_backend", "int8", "this network in 8 bits"),
    "openvino": Runtime(("onnx", "openvino"), "openvino_backend", "float32", "this network in float32"),
    "openvino int8": Runtime(("onnx", "onnxruntime", "openvino"), "openvino_backend", "int8", "this network in 8 bits"),
    "openvino binary": Runtime(("openvino",), "openvino_backend", "binary", "this network, BinaryConvolution"),
}


WARMUP_CALLS = 3  # number of calls per function before the timed calls


class Timing(NamedTuple):
    """Median and minimum time per call in milliseconds, and number of timed calls."""

    median: float
    best: float
    calls: int


def time_alternately(
    calls: Mapping[str, Callable[[], Any]], rounds: int, time_limit_s: float | None = None
) -> dict[str, Timing]:
    """Time the functions in alternation for `rounds` rounds. At the time limit, stop after at least 10 rounds."""
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()
    milliseconds: dict[str, list[float]] = {name: [] for name in calls}
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    for round_index in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            milliseconds[name].append(1000 * (time.perf_counter() - start))
        if deadline is not None and round_index >= 9 and time.monotonic() > deadline:
            break
    return {name: Timing(statistics.median(t), min(t), len(t)) for name, t in milliseconds.items()}
