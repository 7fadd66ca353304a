"""What the records of an arm say: accuracy of the test images, and retention's share of the gradient."""

from __future__ import annotations

import statistics

from lcrbnn.runs.record import has_faulty_power_kernel
from lcrbnn.study.plan import Runs

FAULT_MARK = " †"  # behind the title of a row that needs runs of the faulty power kernel; docs/results.md explains it


def mark_fault(title: str, *variants: Runs) -> str:
    """The title of a row, with FAULT_MARK if one of its runs was trained with the faulty power kernel."""
    is_faulty = any(has_faulty_power_kernel(record) for runs in variants for record in runs.values())
    return title + FAULT_MARK if is_faulty else title


def top1(runs: Runs) -> dict[int, float]:
    """The first reading of the test images, by seed."""
    return {seed: record["readings"][0]["top1"] for seed, record in runs.items()}


def share(runs: Runs) -> str:
    """The mean share after the last epoch; nothing without retention."""
    found = [record["figures"]["last"].get("share") for record in runs.values()]
    known = [one for one in found if one is not None]
    return f"{statistics.fmean(known):.4f}".removeprefix("0") if known else ""
