"""The engine compiled for ARM, under qemu: NEON kernels and row operations give the bits of the scalar ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.runtime import Engine
from tests.deploy.engine.random_graphs import grow_random_graph, skip_without_engine
from tools.native.engine_kernels import TARGETS, _run
from tools.native.fuzz_engine import make_small_models
from tools.native.wasm_page import ROOT, list_engine_sources

skip_without_engine()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build lcrbnn-run for ARM and return its command, including the emulator."""
    compiler, flags, runner = TARGETS["aarch64"]
    assert compiler is not None
    missing = [tool for tool in (compiler, *runner) if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{missing[0]} is not installed")  # CI has it
    sources = [str(ROOT / "native" / "main.cpp"), *list_engine_sources()]
    binary = tmp_path_factory.mktemp("arm") / "lcrbnn-run"
    _run([compiler, "-std=c++17", "-O2", "-ffp-contract=off", "-pthread", *flags, *sources, "-o", str(binary)])
    return [*runner, str(binary)]


def run_program(program: list[str], path: Path, kernel: str, images: np.ndarray) -> str:
    process = subprocess.run(
        [*program, str(path), "--kernel", kernel], input=images.tobytes(), capture_output=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.decode()


MODELS: dict[str, BnnModel] = dict(make_small_models()) | {
    f"graph {seed}": grow_random_graph(seed, version=1 + seed % 2).build_model() for seed in range(60)
}


@pytest.mark.parametrize("name", MODELS)
def test_neon_kernels_equal_scalar_code_on_arm_and_the_engine_here(
    program: list[str], name: str, tmp_path: Path
) -> None:
    model = MODELS[name]
    (tmp_path / "model.bnn").write_bytes(to_bytes(model))
    images = np.random.default_rng(0).standard_normal((2, *model.shape)).astype(np.float32)
    neon, scalar = (run_program(program, tmp_path / "model.bnn", kernel, images) for kernel in ("neon", "scalar"))
    assert neon == scalar
    with Engine(to_bytes(model), kernel="scalar") as engine:
        expected = np.concatenate([value.reshape(2, -1) for value in engine.run_outputs(images).values()], axis=1)
    logits = np.array([line.split() for line in neon.splitlines()], np.float32)
    assert np.abs(logits - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())
