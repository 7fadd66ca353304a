"""Methods side by side, from the records: what their papers publish, ours without retention, ours with it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from lcrbnn.methods import method
from lcrbnn.study.cells import NONE, NOT_RUN, interval, markdown, minus, spread
from lcrbnn.study.promise import Arm, Promise, Row, Table
from lcrbnn.study.published import published
from lcrbnn.study.readings import share, top1

LCR = "-lcr"  # ends the name of the arm with retention
NOT_DECIDED = "not decided"
COLUMNS = ("method", "bits", "network", "published", "ours", "with LCR", "difference", "share")
ABOUT = f"""Where methods are compared, a line is an arm and its twin with retention, whose name ends in `{LCR}`. The
rows are those of the plans, method and bits those of `METHODS` (several bases or signs an activation count once).
*published*: what the method's authors have, mostly their best epoch, with network and setting where these are not ours
(`lcrbnn/study/published.py`); “in Table 1”, “in Table 2”: as the paper prints it. A screening has one run an arm, which
shows where a method stands and decides nothing.
"""


def comparison(promise: Promise, table: Table) -> str:
    """A line for each pair of arms."""
    return markdown(COLUMNS, [_cells(promise, row) for row in table.rows if not row.of.name.endswith(LCR)])


def _cells(promise: Promise, row: Row) -> list[str]:
    spec = promise.plan(row.of.study).arms.get(row.of.name)
    if spec is None:
        return [row.title, "", "", "", NOT_DECIDED, NOT_DECIDED, "", ""]
    chosen = method(spec.method, spec.bits or None)
    title = ", ".join([chosen.name, *spec.method_options])
    kept = promise.runs(Arm(row.of.study, row.of.name + LCR), row.seeds)
    ours, theirs = top1(promise.runs(row.of, row.seeds)), top1(kept)
    bits, difference = chosen.chosen_widths, _difference(ours, theirs)
    paper = published(chosen.name, bits, spec.model)
    return [title, bits, spec.model, paper, _figure(ours, row), _figure(theirs, row), difference, share(kept)]


def _figure(found: Mapping[int, float], row: Row) -> str:
    """The mean; of several seeds with its deviation, and how many there are if some are missing."""
    if not found:
        return NOT_RUN
    values = list(found.values())
    more = f" ({spread(values)})" if row.seeds > 1 else ""
    return f"{statistics.fmean(values):.2f}{more}" + (
        f", {len(values)} of {row.seeds}" if len(values) < row.seeds else ""
    )


def _difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Of the seeds that both have, with an interval if there are several."""
    pairs = [theirs[seed] - ours[seed] for seed in ours if seed in theirs]
    if not pairs:
        return ""
    around = interval(pairs, "+.2f")
    return minus(f"{statistics.fmean(pairs):+.2f}" + (f" {around}" if around != NONE else ""))
