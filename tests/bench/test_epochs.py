from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import CASES, rehearsed
from bench.epochs import measure
from bench.synthetic import known, noise
from lcrbnn.train.options import Options

CPU = Options(device="cpu", step="eager")
CASE = rehearsed(CASES["resnet20"])


def test_the_trainer_is_timed_over_whole_epochs_and_stopped(tmp_path: Path) -> None:
    runs = {tmp_path / f"seed-{seed}": CASE.spec(seed=seed) for seed in range(2)}
    with known(CASE.data, noise(CASE.data, 300)):
        figures = measure(runs, CPU, 2)
    assert len(figures["epoch_s"]) == 2
    assert figures["steps_per_epoch"] == 2
    seconds = sum(figures["epoch_s"])
    assert figures["images_per_second"] == pytest.approx(2 * 2 * 2 * 128 / seconds)
    assert figures["ms_per_step"] == pytest.approx(1000 * seconds / 8)
    for path in runs:
        assert len((path / "log.jsonl").read_text().splitlines()) == 4
        assert not (path / "record.json").exists()


def test_without_epochs_it_ends_after_the_first_step(tmp_path: Path) -> None:
    with known(CASE.data, noise(CASE.data, 300)):
        assert list(measure({tmp_path / "run": CASE.spec()}, CPU, 0)) == ["first_step_s"]
