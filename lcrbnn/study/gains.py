"""What retention gains: seed by seed over its control, beside the paper's gain; of every promised table, as a table."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from lcrbnn.study.cells import NONE, against_zero, markdown, minus
from lcrbnn.study.paired import Paired
from lcrbnn.study.promise import Arm, Promise, Row, Table
from lcrbnn.study.readings import mark_fault, top1

COLUMNS = ("CIFAR-10 unless said", "form", "pairs", "without", "with", "gain, 95 %", "paper's gain")


class Gain(NamedTuple):
    """An arm with retention, over its control."""

    table: str
    row: str
    found: Paired
    paper: float | None  # the paper's gain
    without: float  # percent of the test images, mean of the same seeds
    given: float


def gains(promise: Promise, arm: Arm, seeds: int) -> dict[int, float]:
    """How much an arm is above its control, by seed."""
    ours, control = top1(promise.runs(arm, seeds)), top1(promise.control_runs(arm, seeds))
    return {seed: ours[seed] - control[seed] for seed in ours if seed in control}


def paper_gain(promise: Promise, table: Table, row: Row) -> float | None:
    """The paper's figure of a row less that of its control in the same table; None where it has not both."""
    control = promise.control(row.of)
    paper = next((other.paper for other in table.rows if other.of == control and other.than is None), None)
    return None if paper is None or row.paper is None else row.paper - paper


def all_gains(promise: Promise) -> list[Gain]:
    """Of every arm with retention that has two pairs or more, in the order of the tables; each arm once."""
    done, rows = set(), []
    for table in promise.tables.values():
        for row in () if table.pairs else table.rows:
            pairs = {} if row.of in done or not _retains(promise, row) else gains(promise, row.of, row.seeds)
            found = against_zero(list(pairs.values()))
            if found is not None:
                both = top1(promise.control_runs(row.of, row.seeds)), top1(promise.runs(row.of, row.seeds))
                without, given = (statistics.fmean(side[seed] for seed in pairs) for side in both)
                theirs = paper_gain(promise, table, row)
                title = mark_fault(row.title, promise.runs(row.of, row.seeds))
                rows.append(Gain(table.title, title, found, theirs, without, given))
                done.add(row.of)
    return rows


def _retains(promise: Promise, row: Row) -> bool:
    arms = promise.plan(row.of.study).arms
    return row.than is None and row.of.name in arms and arms[row.of.name].retains


def gains_table(rows: list[Gain]) -> str:
    """A line an arm; the table's title once."""
    lines = []
    for i, row in enumerate(rows):
        gain = minus(str(row.found))
        lines.append(
            [
                row.table if i == 0 or row.table != rows[i - 1].table else "",
                row.row.removeprefix("with LCR, "),
                str(row.found.pairs),
                f"{row.without:.2f}",
                f"{row.given:.2f}",
                f"**{gain}**" if row.found.decided else gain,
                NONE if row.paper is None else minus(f"{row.paper:+.1f}"),
            ]
        )
    return markdown(COLUMNS, lines)
