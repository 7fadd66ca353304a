"""A user's network in parallel runs and in compiled steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.load import read_spec
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train_parallel
from tests.train.helpers import assert_same_runs, make_silent_progress, read_log_without_times, train_small_run
from tests.train.own_networks import write_network

OPTIONS = RunOptions(device="cpu", checkpoint_interval_s=0.0)


def make_spec(folder: Path, **changes: int) -> TrainSpec:
    path = write_network(folder)
    return TrainSpec(model=f"{path}:make_digits_model", epochs=1, batch_size=300, lcr_weight=1.0).replace(**changes)


def test_parallel_runs_equal_single_runs(tmp_path: Path) -> None:
    jobs = {tmp_path / f"pair/{seed}": make_spec(tmp_path, seed=seed) for seed in (0, 1)}
    train_parallel(jobs, OPTIONS, progress=make_silent_progress)
    for path, spec in jobs.items():
        train_small_run(tmp_path / f"single/{spec.seed}", spec, OPTIONS)
        assert_same_runs(path, tmp_path / f"single/{spec.seed}")
        assert read_spec(RunFolder(path)).model_sha256 != ""


@pytest.mark.slow  # compiles a training step
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch's compiler uses deprecated functions
def test_a_compiled_run_agrees_with_an_eager_run(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    train_small_run(tmp_path / "eager", spec, OPTIONS)
    train_small_run(tmp_path / "compiled", spec, RunOptions(device="cpu", step_mode="compiled"))
    (eager,), (compiled,) = (read_log_without_times(tmp_path / name) for name in ("eager", "compiled"))
    assert compiled["train_loss"] == pytest.approx(eager["train_loss"], rel=1e-4)
    assert compiled["lcr_loss"] == pytest.approx(eager["lcr_loss"], rel=1e-3)
    assert compiled["sigma_ratios"] == pytest.approx(eager["sigma_ratios"], rel=1e-3)
