from __future__ import annotations

from pathlib import Path

import pytest

from bench.training.epoch_timer import time_epochs
from bench.training.gpu_cases import CASES, shrink_case
from bench.training.synthetic_data import make_noise_split, register_dataset
from lcrbnn.train.setup.options import RunOptions

CPU = RunOptions(device="cpu", step_mode="eager")
CASE = shrink_case(CASES["resnet20"])


def test_the_trainer_is_timed_over_full_epochs_and_stopped(tmp_path: Path) -> None:
    runs = {tmp_path / f"seed-{seed}": CASE.make_spec(seed=seed) for seed in range(2)}
    with register_dataset(CASE.dataset, make_noise_split(CASE.dataset, 300)):
        figures = time_epochs(runs, CPU, 2)
    assert len(figures["epoch_s"]) == 2
    assert figures["steps_per_epoch"] == 2
    seconds = sum(figures["epoch_s"])
    assert figures["images_per_second"] == pytest.approx(2 * 2 * 2 * 128 / seconds)
    assert figures["ms_per_step"] == pytest.approx(1000 * seconds / 8)
    for path in runs:
        assert len((path / "log.jsonl").read_text().splitlines()) == 4
        assert not (path / "record.json").exists()


def test_without_epochs_the_run_stops_after_the_first_step(tmp_path: Path) -> None:
    with register_dataset(CASE.dataset, make_noise_split(CASE.dataset, 300)):
        assert list(time_epochs({tmp_path / "run": CASE.make_spec()}, CPU, 0)) == ["first_step_s"]
