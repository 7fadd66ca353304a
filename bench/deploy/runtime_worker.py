"""Worker process for one runtime. The process loads the model. Then each request states a number of calls.

Each runtime has its own process, and only one process works at a time. Idle threads of a runtime may spin for a while,
which would disturb another runtime in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.worker_processes import serve_requests
from lcrbnn.deploy.benchmark.runtimes import RUNTIMES, RunBatch
from lcrbnn.deploy.engine.bnn_file import read_model

# number of calls before the first request; each request makes one additional call that is not timed, to fill the caches
NUM_WARM_UP_CALLS = 3
PreparedRuntime = tuple[RunBatch, dict[str, Any]]  # function that runs a batch, and facts for the record
Clock = Callable[[], float]  # function that returns the time of the convolutions in the last call, in milliseconds


def _prepare_engine(job: dict[str, Any]) -> PreparedRuntime:
    from lcrbnn.deploy.engine.runtime import Engine

    engine = Engine(Path(job["model"]))
    threads = job["threads"]
    return lambda images: engine.run(images, threads=threads), {"kernels": sorted(set(engine.kernels))}


def _prepare_torch(job: dict[str, Any]) -> PreparedRuntime:
    import torch

    from bench.deploy.deployed_networks import make_realistic_network

    name, side = job["torch"]
    net = make_realistic_network(name, image_size=side)
    torch.set_num_threads(job["threads"])

    def call(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return net(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))).numpy()

    return call, {"capability": torch.backends.cpu.get_cpu_capability()}


def _prepare_benchmark_runtime(job: dict[str, Any]) -> PreparedRuntime:
    call = RUNTIMES[job["runtime"]].make_call(read_model(Path(job["model"])), job["threads"], job["batch"])
    primitives = getattr(call, "count_primitives", None)
    return call, {"primitives": primitives()} if primitives else {}


def _prepare_engine_convolutions(job: dict[str, Any]) -> tuple[RunBatch, Clock]:
    """Time the binary convolutions with their fused operations: scale, skip, activation and packing of bits."""
    from lcrbnn.deploy.engine.runtime import Engine

    engine = Engine(Path(job["model"]))
    binary = [node.op == "bconv" for node in engine.nodes]

    def clock() -> float:
        return 1000 * job["batch"] * float(engine.times(reset=True)[binary].sum())

    return lambda images: engine.run(images, threads=job["threads"]), clock


def _prepare_openvino_convolutions(job: dict[str, Any]) -> tuple[RunBatch, Clock]:
    """Time the binary convolutions with their fused operations scale, skip and activation.

    Bits are not packed.
    """
    from lcrbnn.deploy.benchmark.openvino_backend import CompiledModel

    compiled = CompiledModel(read_model(Path(job["model"])), job["threads"], job["batch"], "binary", profile=True)
    return compiled, lambda: compiled.node_milliseconds()["BinaryConvolution"]


RUNTIME_PREPARERS: dict[str, Callable[[dict[str, Any]], PreparedRuntime]] = {
    "lcrbnn": _prepare_engine,
    "torch": _prepare_torch,
    **dict.fromkeys(RUNTIMES, _prepare_benchmark_runtime),
}
CONVOLUTION_PREPARERS: dict[str, Callable[[dict[str, Any]], tuple[RunBatch, Clock]]] = {
    "lcrbnn": _prepare_engine_convolutions,
    "openvino binary": _prepare_openvino_convolutions,
}


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Load the runtime, save its outputs, and return the function that makes and times calls."""
    clock: Clock | None = None
    facts: dict[str, Any] = {}
    if job["part"]:
        call, clock = CONVOLUTION_PREPARERS[job["runtime"]](job)
    else:
        call, facts = RUNTIME_PREPARERS[job["runtime"]](job)
    shape = read_model(Path(job["model"])).shape
    images = np.random.default_rng(0).standard_normal((job["batch"], *shape), np.float32)
    # The values are the same in the memory layout that the other runtimes use. So no copy is timed.
    if job["runtime"] != "lcrbnn":
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    np.save(job["answers"], call(images))
    for _ in range(NUM_WARM_UP_CALLS):
        call(images)
    busy_s = 0.0  # CPU seconds that the process spends inside requests
    start_s = time.process_time()

    def handle_request(num_calls: int) -> dict[str, Any]:
        nonlocal busy_s
        turn_start_s = time.process_time()
        idle_s = turn_start_s - start_s - busy_s
        times_ms = []
        for _ in range(1 + num_calls):
            call_start_s = time.perf_counter()
            call(images)
            wall_ms = 1000 * (time.perf_counter() - call_start_s)
            times_ms.append(wall_ms if clock is None else clock())
        busy_s += time.process_time() - turn_start_s
        return {"ms": times_ms[1:], "busy_s": busy_s, "idle_s": idle_s, **facts}

    return handle_request


if __name__ == "__main__":
    serve_requests(prepare)
