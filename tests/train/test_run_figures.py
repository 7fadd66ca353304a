from __future__ import annotations

import json
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.train.run_figures import sample_log_lines
from lcrbnn.train.schedule import is_measured_epoch
from lcrbnn.train.setup.spec import TrainSpec
from tests.train.helpers import SMALL, read_log_without_times, train_small_run


def lines(epochs: int, every: int = 1, early: Collection[int] = ()) -> list[dict[str, Any]]:
    """Return a log with sigma ratios in every n-th epoch, in some early epochs and in the last one."""
    return [
        {
            "epoch": epoch + 1,
            "steps": 10 * epoch,
            "train_loss": 1 / 3 + epoch,
            "train_top1": 200 / 3,
            "valid_top1": None,
            "lcr_gradient_ratio": 1e-5 / 3,
            "sigma_ratios": [2 / 3, 1.0, 1e4 / 3]
            if epoch % every == 0 or epoch in early or epoch == epochs - 1
            else None,
            "seconds": 1.0,
        }
        for epoch in range(epochs)
    ]


@pytest.mark.parametrize("epochs", [1, 2, 20, 21])
def test_the_history_of_a_short_run_has_all_epochs(epochs: int) -> None:
    assert [line["epoch"] for line in sample_log_lines(lines(epochs))] == list(range(1, epochs + 1))


@pytest.mark.parametrize("early", [(), (1, 2, 4, 8)])
def test_the_history_of_a_long_run_has_evenly_spaced_measured_epochs(
    early: Collection[int],
) -> None:
    assert [line["epoch"] for line in sample_log_lines(lines(400, 4, early))] == [*range(1, 400, 20), 400]
    for epochs, every in ((22, 1), (60, 1), (60, 2), (99, 3), (101, 3), (200, 5), (350, 9), (777, 7), (777, 20)):
        history = sample_log_lines(lines(epochs, every, early))
        places = [line["epoch"] for line in history]
        assert (len(history), places[0], places[-1]) == (21, 1, epochs)
        steps = [b - a for a, b in pairwise(places)]
        assert max(steps) - min(steps) <= 2 * every
        assert all(line["sigma_ratios"] for line in history)


def test_the_history_of_a_rarely_measured_run_has_each_measured_epoch_once() -> None:
    places = [line["epoch"] for line in sample_log_lines(lines(100, 33, range(30)))]
    assert places == [*(1, 6, 11, 16, 21, 26), 30, 34, 67, 100]


def test_the_history_of_a_real_run_has_measured_epochs() -> None:
    spec = TrainSpec(epochs=400)
    log = [
        {**line, "sigma_ratios": [1.0] if is_measured_epoch(spec, line["epoch"] - 1) else None} for line in lines(400)
    ]
    history = sample_log_lines(log)
    assert 18 <= len(history) <= 21
    assert all(line["sigma_ratios"] for line in history)


def test_history_numbers_have_five_significant_digits() -> None:
    assert sample_log_lines(lines(2))[1] == {
        "epoch": 2,
        "train_loss": 1.3333,
        "train_top1": 66.667,
        "valid_top1": None,
        "lcr_gradient_ratio": 3.3333e-06,
        "sigma_ratios": [0.66667, 1.0, 3333.3],
    }


def test_a_full_precision_run_has_a_history_without_sigma_ratios() -> None:
    real = [{**line, "sigma_ratios": None} for line in lines(400)]
    history = sample_log_lines(real)
    assert [history[0]["epoch"], history[-1]["epoch"], len(history)] == [1, 400, 21]
    assert sample_log_lines([]) == []


@pytest.mark.parametrize(
    "changes",
    [{}, {"lcr_weight": 4.0}, {"lcr_gradient_ratio": 0.2, "lcr_warmup_epochs": 1.0}],
    ids=["without", "λ", "share"],
)
def test_the_history_in_the_record_matches_the_log(changes: dict[str, Any], tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SMALL.replace(**changes))
    history = json.loads((tmp_path / "run" / "record.json").read_text())["figures"]["history"]
    assert [line["epoch"] for line in history] == [1, 2]
    for line, logged in zip(history, read_log_without_times(tmp_path / "run"), strict=True):
        assert line["sigma_ratios"] == pytest.approx(logged["sigma_ratios"], rel=1e-4)
        assert len(line["sigma_ratios"]) == 3
        for name in ("train_loss", "train_top1", "valid_top1", "lcr_gradient_ratio"):
            assert line[name] == (None if logged[name] is None else pytest.approx(logged[name], rel=1e-4))
        assert (line["lcr_gradient_ratio"] is None) == (not changes)
