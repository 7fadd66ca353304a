"""Read values from the committed records, and format them for documents.

All functions in paper/figures read records with this module.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lcrbnn.runs.record import read_record

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "paper" / "results"
STUDIES = ROOT / "paper" / "studies"
BENCH_RECORDS = ROOT / "bench" / "records"


@cache
def read_cached_record(path: Path) -> dict[str, Any]:
    """Return a record with the names of the current schema. Callers must not change it."""
    return read_record(path)


def read_runs(variant: str, num_seeds: int = 3) -> list[dict[str, Any]]:
    """Return the records of seeds 0, 1, ... of a variant, which is named PLAN/VARIANT."""
    return [read_cached_record(RESULTS / variant / f"seed-{seed}.json") for seed in range(num_seeds)]


def read_metrics(path: Path) -> dict[str, Any]:
    """Return the measured values of a record."""
    metrics: dict[str, Any] = read_cached_record(path)["figures"]
    return metrics


def read_bench_metrics(name: str) -> dict[str, Any]:
    """Return the measured values of a record in bench/records."""
    return read_metrics(BENCH_RECORDS / f"{name}.json")


def read_last_epoch(variant: str, column: str, num_seeds: int = 3) -> list[Any]:
    """Return a log column of the last epoch, one value per seed."""
    return [run["figures"]["last_epoch"][column] for run in read_runs(variant, num_seeds)]


def read_test_accuracy(variant: str, num_seeds: int = 3, metric: str = "top1") -> list[float]:
    """Return the accuracy of the first test result in percent, one value per seed."""
    return [run["test_results"][0][metric] for run in read_runs(variant, num_seeds)]


def read_noise_accuracy(variant: str, num_seeds: int = 3) -> list[float]:
    """Return the validation accuracy in percent, averaged over the noise levels, one value per seed."""
    return [statistics.fmean(run["figures"]["noise_top1"].values()) for run in read_runs(variant, num_seeds)]


def mean_ratio_distance(ratios: Sequence[float]) -> float:
    """Return the mean of |σ_B/σ_F − 1| over the ratios."""
    return statistics.fmean(abs(ratio - 1) for ratio in ratios)


def join_values(values: Sequence[float], decimals: int = 2) -> str:
    """Return the values as text, separated by spaces."""
    return " ".join(f"{value:.{decimals}f}" for value in values)


def join_differences(a: Sequence[float], b: Sequence[float]) -> str:
    """Return the differences b − a as text: one per seed, with signs, separated by spaces."""
    return replace_hyphens(" ".join(f"{y - x:+.2f}" for x, y in zip(a, b, strict=True)))


def format_mean_std(values: Sequence[float], decimals: int = 2) -> str:
    """Return the mean as text, followed by the standard deviation in brackets."""
    return f"{statistics.fmean(values):.{decimals}f} ({statistics.stdev(values):.{decimals}f})"


def replace_hyphens(value: object) -> str:
    """Return the value as text, with minus signs in place of hyphens."""
    return str(value).replace("-", "−")


def format_row(*cells: str) -> str:
    """Return a row of a Markdown table. An empty cell is a single space."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
