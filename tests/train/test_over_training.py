from __future__ import annotations

import json
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.train import Spec
from lcrbnn.train.figures import over_training
from lcrbnn.train.schedule import looked_at
from tests.train.helpers import SMALL, log, small_run


def lines(epochs: int, every: int = 1, early: Collection[int] = ()) -> list[dict[str, Any]]:
    """A log, with ratios every so many epochs, in some early ones and in the last."""
    return [
        {
            "epoch": epoch + 1,
            "steps": 10 * epoch,
            "loss": 1 / 3 + epoch,
            "train": 200 / 3,
            "valid": None,
            "share": 1e-5 / 3,
            "ratios": [2 / 3, 1.0, 1e4 / 3] if epoch % every == 0 or epoch in early or epoch == epochs - 1 else None,
            "seconds": 1.0,
        }
        for epoch in range(epochs)
    ]


@pytest.mark.parametrize("epochs", [1, 2, 20, 21])
def test_a_short_run_is_shown_whole(epochs: int) -> None:
    assert [line["epoch"] for line in over_training(lines(epochs))] == list(range(1, epochs + 1))


@pytest.mark.parametrize("early", [(), (1, 2, 4, 8)])
def test_a_long_run_is_shown_at_even_distances_from_the_first_epoch_to_the_last_with_ratios_throughout(
    early: Collection[int],
) -> None:
    assert [line["epoch"] for line in over_training(lines(400, 4, early))] == [*range(1, 400, 20), 400]
    for epochs, every in ((22, 1), (60, 1), (60, 2), (99, 3), (101, 3), (200, 5), (350, 9), (777, 7), (777, 20)):
        shown = over_training(lines(epochs, every, early))
        places = [line["epoch"] for line in shown]
        assert (len(shown), places[0], places[-1]) == (21, 1, epochs)
        steps = [b - a for a, b in pairwise(places)]
        assert max(steps) - min(steps) <= 2 * every
        assert all(line["ratios"] for line in shown)


def test_a_run_that_was_seldom_looked_at_shows_each_of_them_once() -> None:
    places = [line["epoch"] for line in over_training(lines(100, 33, range(30)))]
    assert places == [*(1, 6, 11, 16, 21, 26), 30, 34, 67, 100]


def test_a_real_run_is_shown_at_epochs_with_ratios() -> None:
    spec = Spec(epochs=400)
    log = [{**line, "ratios": [1.0] if looked_at(spec, line["epoch"] - 1) else None} for line in lines(400)]
    shown = over_training(log)
    assert 18 <= len(shown) <= 21
    assert all(line["ratios"] for line in shown)


def test_five_digits_are_enough() -> None:
    assert over_training(lines(2))[1] == {
        "epoch": 2,
        "loss": 1.3333,
        "train": 66.667,
        "valid": None,
        "share": 3.3333e-06,
        "ratios": [0.66667, 1.0, 3333.3],
    }


def test_a_run_without_ratios_is_shown_all_the_same() -> None:
    real = [{**line, "ratios": None} for line in lines(400)]
    shown = over_training(real)
    assert [shown[0]["epoch"], shown[-1]["epoch"], len(shown)] == [1, 400, 21]
    assert over_training([]) == []


@pytest.mark.parametrize("changes", [{}, {"weight": 4.0}, {"share": 0.2, "ramp": 1.0}], ids=["without", "λ", "share"])
def test_the_record_shows_what_the_log_has(changes: dict[str, Any], tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(**changes))
    shown = json.loads((tmp_path / "run" / "record.json").read_text())["figures"]["over_training"]
    assert [line["epoch"] for line in shown] == [1, 2]
    for line, logged in zip(shown, log(tmp_path / "run"), strict=True):
        assert line["ratios"] == pytest.approx(logged["ratios"], rel=1e-4)
        assert len(line["ratios"]) == 3
        for name in ("loss", "train", "valid", "share"):
            assert line[name] == (None if logged[name] is None else pytest.approx(logged[name], rel=1e-4))
        assert (line["share"] is None) == (not changes)
