"""Threads that share one engine: a thousand calls at a time give the bits that each gives alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.engine import Model, lib
from lcrbnn.engine.format import to_bytes, write_model
from lcrbnn.errors import InputError
from tests.engine import every_op, resnet20
from tools.build import build, compiler
from tools.race import RACES, race

ROOT = Path(__file__).parents[2]
THREADS, CALLS = 8, 125
RNG = np.random.default_rng


@pytest.mark.parametrize("model", [every_op(RNG(0)), resnet20(RNG(1))], ids=["every op", "resnet20"])
def test_a_thousand_calls_on_one_engine(model: Model) -> None:
    """Float and pixel images, one to six at a time, by one thread and by two."""
    try:
        engine = lib.Engine(to_bytes(model))
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))  # the engine is not built
    images = RNG(2).standard_normal((12, *model.shape)).astype(np.float32)
    pixels = RNG(3).integers(0, 256, images.shape).astype(np.uint8)
    sources = [(each, engine.run(each)) for each in (images, pixels)]
    wrong: list[tuple[int, int]] = []
    start = threading.Barrier(THREADS)

    def calls(thread: int) -> None:
        rng = RNG(100 + thread)
        start.wait()
        for call in range(CALLS):
            first, count, threads = int(rng.integers(7)), int(rng.integers(7)), int(rng.integers(1, 3))
            source, want = sources[int(rng.integers(2))]
            got = engine.run(source[first : first + count], threads=threads)
            if got.tobytes() != want[first : first + count].tobytes():
                wrong.append((thread, call))

    workers = [threading.Thread(target=calls, args=(i,)) for i in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.slow  # the engine is built once more, with the sanitizer; the next time it is there
def test_thread_sanitizer_finds_nothing(tmp_path: Path) -> None:
    """The start of `python -m tools.race`."""
    if not compiler() and not os.environ.get("CI"):
        pytest.skip("there is no C++ compiler")  # then there is no engine either
    path = tmp_path / "model.bnn"
    write_model(path, every_op(RNG(0)))
    found = race(build("race", ROOT / "build" / "sanitized", RACES), path, 8, 100)
    assert (found["calls"], found["different"], found["failed"]) == (800, 0, 0)
