"""Threads that share one engine: concurrent calls give the same bits as single calls."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bnn_file import to_bytes, write_model
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.errors import InputError
from tests.deploy.engine.small_models import Generator, make_model_with_every_op, make_resnet20
from tests.deploy.engine.version_2_models import make_broadcast_model, make_version_2_model
from tools.native.build import build_program, find_compiler
from tools.native.thread_sanitizer import SANITIZER_FLAGS, run_threads

ROOT = Path(__file__).parents[3]
THREADS, CALLS = 8, 125
RNG = np.random.default_rng


@pytest.mark.parametrize(
    "make_model", [make_model_with_every_op, make_resnet20, make_version_2_model, make_broadcast_model]
)
def test_concurrent_calls_give_the_same_bits_as_single_calls(make_model: Callable[[Generator], BnnModel]) -> None:
    """Use float and uint8 images, batches of 0 to 6, and one or two threads per call."""
    model = make_model(RNG(0))
    try:
        engine = lib.Engine(to_bytes(model))
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))  # the engine is not built
    images = RNG(2).standard_normal((12, *model.shape)).astype(np.float32)
    pixels = RNG(3).integers(0, 256, images.shape).astype(np.uint8)

    def run(inputs: np.ndarray, threads: int = 1) -> np.ndarray:
        """Return all outputs of each image as one row."""
        outputs = engine.run_outputs(inputs, threads=threads).values()
        return np.concatenate([value.reshape(len(inputs), math.prod(value.shape[1:])) for value in outputs], axis=1)

    sources = [(inputs, run(inputs)) for inputs in (images, pixels)]
    mismatches: list[tuple[int, int]] = []
    start = threading.Barrier(THREADS)

    def run_calls(thread: int) -> None:
        rng = RNG(100 + thread)
        start.wait()
        for call in range(CALLS):
            first, count, threads = int(rng.integers(7)), int(rng.integers(7)), int(rng.integers(1, 3))
            source, want = sources[int(rng.integers(2))]
            got = run(source[first : first + count], threads)
            if got.tobytes() != want[first : first + count].tobytes():
                mismatches.append((thread, call))

    workers = [threading.Thread(target=run_calls, args=(i,)) for i in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not mismatches


@pytest.mark.slow  # builds the engine with the sanitizer the first time
def test_thread_sanitizer_finds_no_races(tmp_path: Path) -> None:
    """Run a short version of `python -m tools.native.thread_sanitizer`."""
    if not find_compiler() and not os.environ.get("CI"):
        pytest.skip("there is no C++ compiler")  # then there is no engine either
    program = build_program("race", ROOT / "build" / "sanitized", SANITIZER_FLAGS)
    for model in (make_model_with_every_op(RNG(0)), make_version_2_model(RNG(0))):
        path = tmp_path / "model.bnn"
        write_model(path, model)
        figures = run_threads(program, path, 8, 100)
        assert (figures["calls"], figures["different"], figures["failed"]) == (800, 0, 0)
