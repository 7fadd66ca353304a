"""The whole engine as an ARM runs it, under qemu: its kernel and passes over rows give the bits of the plain ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.engine import Model
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from tests.engine.graphs import grown, need_engine
from tools.fuzz import small_models
from tools.kernels import TARGETS, _run
from tools.page import ROOT, engine_sources

need_engine()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """lcrbnn-run for an ARM, and what runs it here."""
    compiler, flags, runner = TARGETS["aarch64"]
    assert compiler is not None
    lacking = [tool for tool in (compiler, *runner) if shutil.which(tool) is None]
    if lacking and not os.environ.get("CI"):
        pytest.skip(f"{lacking[0]} is not installed")  # only another processor's engine needs it
    sources = [str(ROOT / "native" / "main.cpp"), *engine_sources()]
    made = tmp_path_factory.mktemp("arm") / "lcrbnn-run"
    _run([compiler, "-std=c++17", "-O2", "-ffp-contract=off", "-pthread", *flags, *sources, "-o", str(made)])
    return [*runner, str(made)]


def answers(program: list[str], path: Path, kernel: str, images: np.ndarray) -> str:
    done = subprocess.run(
        [*program, str(path), "--kernel", kernel], input=images.tobytes(), capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


MODELS: dict[str, Model] = dict(small_models()) | {f"graph {seed}": grown(seed).model() for seed in range(30)}


@pytest.mark.parametrize("name", MODELS)
def test_an_arm_answers_as_plain_code_does_and_as_this_machine(program: list[str], name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    (tmp_path / "model.bnn").write_bytes(to_bytes(model))
    images = np.random.default_rng(0).standard_normal((2, *model.shape)).astype(np.float32)
    fast, plain = (answers(program, tmp_path / "model.bnn", kernel, images) for kernel in ("neon", "scalar"))
    assert fast == plain
    with Engine(to_bytes(model), kernel="scalar") as engine:
        wanted = engine.run(images)
    found = np.array([line.split() for line in fast.splitlines()], np.float32)
    assert np.abs(found - wanted).max() <= 1e-4 * max(1.0, np.abs(wanted).max())
