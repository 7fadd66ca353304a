"""One runtime in a process of its own: gets ready, then makes so many calls whenever it is told to.

Nothing else of that process runs meanwhile, and nothing of it while others are timed: idle threads of one runtime
may spin for a while, which would disturb another in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import work
from lcrbnn.engine.format import read_model
from lcrbnn.peers import PEERS, Call

WARM = 3  # calls before those that count; later one a turn, for the caches
Prepared = tuple[Call, dict[str, Any]]  # and what it says of itself
Clock = Callable[[], float]  # milliseconds of a part of the last call


def _ours(job: dict[str, Any]) -> Prepared:
    from lcrbnn.engine.lib import Engine

    engine = Engine(Path(job["model"]))
    threads = job["threads"]
    return lambda images: engine.run(images, threads=threads), {"kernels": sorted(set(engine.kernels))}


def _torch(job: dict[str, Any]) -> Prepared:
    import torch

    from bench.deployed import lively

    name, side = job["torch"]
    net = lively(name, side=side)
    torch.set_num_threads(job["threads"])

    def call(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return net(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))).numpy()

    return call, {"capability": torch.backends.cpu.get_cpu_capability()}


def _peer(job: dict[str, Any]) -> Prepared:
    call = PEERS[job["runtime"]].make(read_model(Path(job["model"])), job["threads"], job["batch"])
    primitives = getattr(call, "primitives", None)
    return call, {"primitives": primitives()} if primitives else {}


def _our_convolutions(job: dict[str, Any]) -> tuple[Call, Clock]:
    """Binary convolutions with what is fused to them: scale, skip, activation, and the next one's bits."""
    from lcrbnn.engine.lib import Engine

    engine = Engine(Path(job["model"]))
    binary = [node.op == "bconv" for node in engine.nodes]

    def clock() -> float:
        return 1000 * job["batch"] * float(engine.times(reset=True)[binary].sum())

    return lambda images: engine.run(images, threads=job["threads"]), clock


def _openvino_convolutions(job: dict[str, Any]) -> tuple[Call, Clock]:
    """Its binary convolutions with what is fused to them: scale, skip and activation; not the bits."""
    from lcrbnn.peers.open_vino import Compiled

    made = Compiled(read_model(Path(job["model"])), job["threads"], job["batch"], "binary", counts=True)
    return made, lambda: made.milliseconds()["BinaryConvolution"]


RUNTIMES: dict[str, Callable[[dict[str, Any]], Prepared]] = {
    "lcrbnn": _ours,
    "torch": _torch,
    **dict.fromkeys(PEERS, _peer),
}
PARTS: dict[str, Callable[[dict[str, Any]], tuple[Call, Clock]]] = {
    "lcrbnn": _our_convolutions,
    "openvino binary": _openvino_convolutions,
}


def prepare(job: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Get ready, keep the answers, and return what makes so many calls and says what each took, in milliseconds."""
    clock: Clock | None = None
    facts: dict[str, Any] = {}
    if job["part"]:
        call, clock = PARTS[job["runtime"]](job)
    else:
        call, facts = RUNTIMES[job["runtime"]](job)
    shape = read_model(Path(job["model"])).shape
    images = np.random.default_rng(0).standard_normal((job["batch"], *shape), np.float32)
    if job["runtime"] != "lcrbnn":  # the same numbers, lying as the others take them: no copy is timed
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    np.save(job["answers"], call(images))
    for _ in range(WARM):
        call(images)
    busy = 0.0  # processor time in turns
    start = time.process_time()

    def do(calls: int) -> dict[str, Any]:
        nonlocal busy
        began = time.process_time()
        idle = began - start - busy
        taken = []
        for _ in range(1 + calls):
            before = time.perf_counter()
            call(images)
            wall = 1000 * (time.perf_counter() - before)
            taken.append(wall if clock is None else clock())
        busy += time.process_time() - began
        return {"ms": taken[1:], "busy_s": busy, "idle_s": idle, **facts}

    return do


if __name__ == "__main__":
    work(prepare)
