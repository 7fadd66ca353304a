"""The promised tables from their records, as Markdown: the paper's figure, ours with its interval, the difference."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from lcrbnn.study.cells import NONE, NOT_RUN, against_zero, interval, markdown, minus, spread
from lcrbnn.study.comparison import ABOUT, comparison
from lcrbnn.study.gains import all_gains, gains, gains_table, paper_gain
from lcrbnn.study.layers import layer_tables
from lcrbnn.study.promise import Promise, Row, Table
from lcrbnn.study.readings import mark_fault, share, top1

COLUMNS = (
    "",
    "runs",
    "paper",
    "ours (sd)",
    "95 %",
    "ours − paper",
    "gain",
    "95 %",
    "visible",
    "paper's gain",
    "share",
)
TOP5 = "top-5 (sd)"

TOP = """# Results: the paper's CIFAR-10 tables, and Tiny-ImageNet

Written by `lcrbnn reproduce --write` from `results/plan.toml`, the list of all that was promised, and from the records
of the runs; a test compares. The protocol is that of [reproduce.md](reproduce.md): 400 epochs, all 50,000 training
images, the last epoch, all 10,000 test images, read once; a seed fixes start, order and augmentation. Fewer epochs are
said in the title. For Tiny-ImageNet it is that of ImageNet, shorter: 60 epochs, all 100,000 training images, the 10,000
of val as test images.

Percent of the test images. *ours*: mean over seeds, with the standard deviation and the 95 % interval of the mean
(Student's t). *gain*: mean difference to the control (λ = 0), seed by seed, with its 95 % interval; *visible*: the
smallest true gain that so many pairs show four times out of five. *share*: retention's part of the gradient after the
last epoch; under .01 it is not called LCR. A dash: the paper has no figure there, or one run gives no interval. The
paper's figures are those that it prints.

† The GPU kernel of these runs was faulty. Power iteration starts from v_0 and takes n steps (5 by default), and L_Lip
needs the last two vectors, v_n and v_{n−1}. The kernel returned v_0 in place of v_{n−1}, so the value and the gradient
of L_Lip were wrong. The fault was in the package from 2026-11-15 to 2026-11-18 (a record with `lcr_revision` 2 or later
does not have it). It changed every run that was trained with LCR on a GPU, and every ratio σ_B/σ_F that was measured
during such a training. Runs without LCR and runs on a CPU are correct. The marked rows describe the networks that were
trained; they say little about LCR until they are repeated with the corrected kernel.
"""

SUMMARY = """## What retention gains, all studies

Every arm with retention that has two pairs of runs or more, in the order of the tables below; in bold what is decided,
an interval that leaves out 0. [Drawn](gains.svg) (`lcrbnn reproduce --gains docs/gains.svg`).
"""


def render(promise: Promise) -> str:
    """The whole document."""
    sections = [
        f"## {table.title}\n\n{describe(table)}\n\n{render_table(promise, table)}\n"
        for table in promise.tables.values()
    ]
    about = [ABOUT] if any(table.pairs for table in promise.tables.values()) else []
    found = all_gains(promise)
    first = [f"{SUMMARY}\n{gains_table(found)}\n"] if found else []
    return "\n".join([TOP, *about, *first, *sections, *layer_tables(promise)])


def describe(table: Table) -> str:
    """Where the paper has it, and what makes it here."""
    return f"The paper: {table.source}. Here: `lcrbnn reproduce {table.name}`."


def render_table(promise: Promise, table: Table) -> str:
    """One table, a line a row or a pair of them; a row without a record says so."""
    if table.pairs:
        return comparison(promise, table)
    cells = [_cells(promise, table, row) for row in table.rows]
    if not table.top5:
        return markdown(COLUMNS, cells)
    return markdown((*COLUMNS, TOP5), [[*one, _top5(promise, row)] for one, row in zip(cells, table.rows, strict=True)])


class Progress(NamedTuple):
    """How much of a table is there."""

    rows: int  # all of whose runs are there
    of_rows: int
    runs: int
    of_runs: int


def progress(promise: Promise, table: Table) -> Progress:
    """Count the rows and runs of a table that have their figures."""
    arms = promise.arms(table)
    there = {arm: len(promise.runs(arm, seeds)) for arm, seeds in arms.items()}
    needed = [[row.of] if row.than is None else [row.of, row.than] for row in table.rows]
    rows = sum(all(there[arm] >= row.seeds for arm in of) for row, of in zip(table.rows, needed, strict=True))
    return Progress(rows, len(table.rows), sum(there.values()), sum(arms.values()))


def _cells(promise: Promise, table: Table, row: Row) -> list[str]:
    signed = "+" if row.than else ""  # a difference of gains, not a percentage
    paper = NONE if row.paper is None else f"{row.paper:{signed}.1f}"
    cells = [row.title, NOT_RUN, paper + (f" ({row.note})" if row.note else ""), *[""] * (len(COLUMNS) - 3)]
    values = _values(promise, row)
    if not values:
        return cells
    mean = statistics.fmean(values)
    measured = [row.of] if row.than is None else [row.of, row.than]
    cells[0] = mark_fault(row.title, *(promise.runs(arm, row.seeds) for arm in measured))
    cells[1] = f"{len(values)}" if len(values) == row.seeds else f"{len(values)} of {row.seeds}"
    possible = (-200.0, 200.0) if row.than else (0.0, 100.0)
    cells[3:5] = f"{mean:{signed}.2f} ({spread(values)})", interval(values, f"{signed}.2f", possible)
    cells[5] = NONE if row.paper is None else f"{mean - row.paper:+.2f}"
    if row.of != promise.control(row.of) and row.than is None:
        pairs = list(gains(promise, row.of, row.seeds).values())
        shown, theirs = against_zero(pairs), paper_gain(promise, table, row)
        cells[6:8] = f"{statistics.fmean(pairs):+.2f}" if pairs else NONE, interval(pairs, "+.2f")
        cells[8:10] = NONE if shown is None else f"{shown.visible:.2f}", NONE if theirs is None else f"{theirs:+.1f}"
        cells[10] = share(promise.runs(row.of, row.seeds))
    return [minus(cell) for cell in cells]


def _values(promise: Promise, row: Row) -> list[float]:
    """The figures of a row, one a seed."""
    if row.than is None:
        return list(top1(promise.runs(row.of, row.seeds)).values())
    ours, theirs = gains(promise, row.of, row.seeds), gains(promise, row.than, row.seeds)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def _top5(promise: Promise, row: Row) -> str:
    found = [record["readings"][0]["top5"] for record in promise.runs(row.of, row.seeds).values()]
    return f"{statistics.fmean(found):.2f} ({spread(found)})" if found else ""
