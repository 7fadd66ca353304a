"""Figures of the small studies that docs/LOG.md and docs/method.md quote, told from their records as they tell them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from lcrbnn.study.paired import Paired, paired

ROOT = Path(__file__).parents[1]
LOG, METHOD = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("LOG.md", "method.md"))
SEEDS = {"small-regularizers": 5, "small-below": 8}
ARMS = ("default", "spectral", "spectral-signs", "defensive", "decay-3e-4")


def valid(plan: str, arm: str) -> list[float]:
    """Percent of the validation images at the last epoch, by seed."""
    places = [ROOT / "results" / plan / arm / f"seed-{seed}.json" for seed in range(SEEDS[plan])]
    return [json.loads(place.read_text())["figures"]["last"]["valid"] for place in places]


def gap(plan: str, arm: str) -> float:
    """How far the ratios of all layers are from 1 at the end, on average."""
    places = [ROOT / "results" / plan / arm / f"seed-{seed}.json" for seed in range(SEEDS[plan])]
    ratios = [json.loads(place.read_text())["figures"]["last"]["ratios"] for place in places]
    return statistics.fmean(abs(one - 1) for run in ratios for one in run)


def told(found: Paired) -> str:
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]".replace("-", "−")


def gain(plan: str, arm: str) -> Paired:
    return paired(valid(plan, "none"), valid(plan, arm))


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({statistics.stdev(values):.2f})"


def test_the_table_of_regularizers() -> None:
    plan = "small-regularizers"
    assert f"| `none` | {spread(valid(plan, 'none'))} |  |  |" in LOG
    for arm in ARMS:
        found = gain(plan, arm)
        assert f"| `{arm}` | {spread(valid(plan, arm))} | {told(found)} | {found.visible:.2f} |" in LOG
        assert not found.decided, arm  # as both documents say
    for arm in ("default", "spectral", "spectral-signs", "defensive"):
        assert told(gain(plan, arm)) in METHOD


def test_what_is_below_its_reference_alone() -> None:
    plan = "small-below"
    found = gain(plan, "below")
    assert f"{spread(valid(plan, 'none'))} % without, {spread(valid(plan, 'below'))} % with it" in LOG
    assert f"{told(found)}; a difference of {found.visible:.2f} would have been seen four times out of five" in LOG
    assert f"from {gap(plan, 'none'):.2f} to {gap(plan, 'below'):.2f}" in LOG
    worse = sum(a > b for a, b in zip(valid(plan, "none"), valid(plan, "below"), strict=True))
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "all eight")
    assert f"{words[worse]} of the pairs lose" in LOG
