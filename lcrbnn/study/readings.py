"""What the records of an arm say: accuracy of the test images, and retention's share of the gradient."""

from __future__ import annotations

import statistics

from lcrbnn.study.plan import Runs


def top1(runs: Runs) -> dict[int, float]:
    """The first reading of the test images, by seed."""
    return {seed: record["readings"][0]["top1"] for seed, record in runs.items()}


def share(runs: Runs) -> str:
    """The mean share after the last epoch; nothing without retention."""
    found = [record["figures"]["last"].get("share") for record in runs.values()]
    known = [one for one in found if one is not None]
    return f"{statistics.fmean(known):.4f}".removeprefix("0") if known else ""
