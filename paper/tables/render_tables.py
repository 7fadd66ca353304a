"""Render tables as Markdown, with the paper's value, our value with its interval, and the difference, from records."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lcrbnn.evaluation.table_cells import (
    NO_VALUE,
    NOT_RUN,
    compare_with_zero,
    format_interval,
    format_markdown_table,
    format_std,
    use_minus_sign,
)
from paper.tables.gains import (
    compute_all_gains,
    compute_gains,
    find_paper_gain,
    pool_gains,
    render_gains,
    render_pooled_gains,
)
from paper.tables.gpu_minutes import estimate_gpu_minutes
from paper.tables.layer_tables import render_layer_tables
from paper.tables.method_comparison import ABOUT_COMPARISON, render_comparison
from paper.tables.table_spec import (
    PaperTable,
    PaperTables,
    TableRow,
    TableVariant,
    format_gradient_ratio,
    mark_fault,
    read_table_spec,
    read_top1,
)

PAPER_FOLDER = Path(__file__).parents[1]
TABLE_SPEC = PAPER_FOLDER / "tables.toml"
RESULTS_DOCUMENT = PAPER_FOLDER / "docs" / "results.md"

COLUMNS = (
    "",
    "runs",
    "paper",
    "ours (sd)",
    "95 %",
    "ours − paper",
    "gain",
    "95 %",
    "detectable",
    "paper's gain",
    "gradient ratio",
)
TOP5_COLUMN = "top-5 (sd)"

INTRODUCTION = """# Results: the paper's CIFAR-10 tables, and Tiny-ImageNet

`python -m paper update` writes this page from the table spec `paper/tables.toml` and from the records of the runs.
`python -m paper check` compares the page with these records. The runs follow the protocol of
[reproduce.md](reproduce.md). They train for 400 epochs on all 50,000 training images. The network of the last epoch is
evaluated once on all 10,000 test images. The seed of a run fixes initialization, data order and augmentation. If a
table has runs with fewer epochs, its title states the number of epochs. Tiny-ImageNet follows the protocol of ImageNet
with a shorter schedule: 60 epochs, all 100,000 training images, and the 10,000 images of val as test images.

Tables without a finished run come last. The GPU minutes of such a table are an estimate for one H200: the number of
training images of all missing runs, divided by the measured speed of parallel runs in bfloat16 without LCR
(`bench/records`).

All accuracies are percentages of the test images. The tables have these columns:

- *ours* is the mean over seeds, with the standard deviation. The column after it is the 95 % interval of this mean
  (Student's t).
- *gain* is the mean difference to the baseline (λ = 0), paired by seed, with its 95 % interval.
- *detectable* is the smallest true gain that this number of pairs detects with a probability of 80 %.
- *gradient ratio* is the norm of the LCR gradient divided by the norm of the task-loss gradient after the last epoch. A
  run with a gradient ratio below .01 does not count as a run with LCR.
- *paper* and *paper's gain* are the values that the paper prints.

A dash means that the paper has no value for this cell, or that a single run gives no interval.

† The GPU kernel of the marked runs was faulty. Power iteration starts from v_0 and takes n steps (5 by default), and
the LCR loss L_Lip needs the last two vectors, v_n and v_{n−1}. The kernel returned v_0 in place of v_{n−1}, so the
value and the gradient of L_Lip were wrong. The package had this fault from 2026-11-15 to 2026-11-18. A record with
`lcr_revision` 2 or later does not have the fault. The fault changed every run that was trained with LCR on a GPU, and
every ratio σ_B/σ_F that was measured during such a training. Runs without LCR and runs on a CPU are correct. The marked
rows describe the networks that were trained. They are only weak evidence about LCR until the runs are repeated with the
corrected kernel.
"""

GAINS_SECTION = """## Gains from LCR in all studies

This table contains every variant with LCR and at least two pairs of runs, in the order of the tables below. A gain is
bold if its corrected p-value is below 0.05. [A figure](gains.svg) shows the same gains (`lcrbnn reproduce
--gains-figure paper/docs/gains.svg`). The columns are:

- *gain* is the mean difference to the baseline, with its paired 95 % interval.
- *Welch's 95 %* is the interval that treats the two runs of a pair as independent.
- *correlation* is Pearson's correlation of the accuracies of the two runs of each seed. Pairing shortens the interval
  only if this correlation is positive.
- *p, Holm* is the p-value of the paired comparison, corrected by Holm's method for the number of rows of this table.
"""

POOLED_SECTION = """A pooled estimate is the mean gain over all pairs of several networks. Each pair has the same
weight. The interval uses the variance inside the networks, so the networks may have different gains. *paper's gain*:
the mean of the paper's gains of these networks, with the same weights. The last column states whether the interval
contains this mean. Runs with the faulty kernel (†) are not pooled with other runs.
"""


def render_document(paper_tables: PaperTables) -> str:
    """Return the text of paper/docs/results.md with all tables."""
    return "\n".join(_render_sections(paper_tables))


def _render_sections(paper_tables: PaperTables) -> Iterator[str]:
    tables = paper_tables.tables.values()
    yield INTRODUCTION
    if any(table.pairs for table in tables):
        yield ABOUT_COMPARISON
    if gains := compute_all_gains(paper_tables):
        yield f"{GAINS_SECTION}\n{render_gains(gains)}\n"
        if pooled_gains := pool_gains(gains):
            yield f"{POOLED_SECTION}\n{render_pooled_gains(pooled_gains)}\n"
    progress_by_table = {table.name: count_finished(paper_tables, table) for table in tables}
    for table in sorted(tables, key=lambda table: progress_by_table[table.name].finished_runs == 0):
        description = describe_table(table)
        if progress_by_table[table.name].finished_runs == 0:
            description += describe_missing_runs(paper_tables, table)
        yield f"## {table.title}\n\n{description}\n\n{render_table(paper_tables, table)}\n"
    yield from render_layer_tables(paper_tables)


def render_committed_results() -> str:
    """Return paper/docs/results.md as it follows from the committed records."""
    return render_document(read_table_spec(TABLE_SPEC))


def find_stale_tables() -> list[str]:
    """Return one sentence for each section of paper/docs/results.md that does not agree with the committed records."""
    return compare_sections(render_committed_results(), RESULTS_DOCUMENT.read_text(encoding="utf-8"))


def compare_sections(expected: str, actual: str) -> list[str]:
    """Return one sentence for each section that differs between two versions of paper/docs/results.md."""
    expected_sections, actual_sections = _split_sections(expected), _split_sections(actual)
    titles = [t for t in expected_sections | actual_sections if expected_sections.get(t) != actual_sections.get(t)]
    return [f"paper/docs/results.md: the section {title!r} is out of date" for title in titles]


def _split_sections(text: str) -> dict[str, str]:
    first, *sections = ("\n" + text).split("\n## ")
    return {"introduction": first} | {section.partition("\n")[0]: section for section in sections}


def describe_table(table: PaperTable) -> str:
    """Return where the paper has a table, and the command that reproduces this table."""
    return f"In the paper: {table.source}. Command for our values: `lcrbnn reproduce {table.name}`."


def describe_missing_runs(paper_tables: PaperTables, table: PaperTable) -> str:
    """Return two sentences for a table without finished runs: the number of runs, and the GPU minutes for them."""
    minutes, num_runs = estimate_gpu_minutes(paper_tables, table), count_finished(paper_tables, table).num_runs
    duration = "their duration is not known" if minutes is None else f"about {minutes:.0f} minutes on one H200"
    return f" None of its {num_runs} runs is finished: {duration}."


def render_table(paper_tables: PaperTables, table: PaperTable) -> str:
    """Return a table as Markdown. If a row has no record, its cells contain "not run"."""
    if table.pairs:
        return render_comparison(paper_tables, table)
    cells = [_format_row(paper_tables, table, row) for row in table.rows]
    if not table.show_top5:
        return format_markdown_table(COLUMNS, cells)
    rows = [[*row_cells, _format_top5(paper_tables, row)] for row_cells, row in zip(cells, table.rows, strict=True)]
    return format_markdown_table((*COLUMNS, TOP5_COLUMN), rows)


class TableProgress(NamedTuple):
    """Numbers of finished rows, of all rows, of finished runs and of all runs of a table."""

    finished_rows: int  # number of rows whose runs are all finished
    num_rows: int
    finished_runs: int
    num_runs: int


def count_finished(paper_tables: PaperTables, table: PaperTable) -> TableProgress:
    """Return how many rows and runs of a table have test results."""
    num_seeds = paper_tables.count_seeds(table)
    num_finished = {variant: len(paper_tables.read_runs(variant, seeds)) for variant, seeds in num_seeds.items()}
    finished_rows = sum(
        all(num_finished[variant] >= row.num_seeds for variant in _list_shown_variants(row)) for row in table.rows
    )
    return TableProgress(finished_rows, len(table.rows), sum(num_finished.values()), sum(num_seeds.values()))


def _list_shown_variants(row: TableRow) -> list[TableVariant]:
    return [row.variant] if row.minus_gain_of is None else [row.variant, row.minus_gain_of]


def _format_row(paper_tables: PaperTables, table: PaperTable, row: TableRow) -> list[str]:
    sign = "+" if row.minus_gain_of else ""  # a difference of gains is shown with a sign, a percentage without a sign
    paper_value = NO_VALUE if row.paper_value is None else f"{row.paper_value:{sign}.1f}"
    paper_note = f" ({row.paper_note})" if row.paper_note else ""
    cells = [row.title, NOT_RUN, paper_value + paper_note, *[""] * (len(COLUMNS) - 3)]
    values = _compute_values(paper_tables, row)
    if not values:
        return cells
    mean = statistics.fmean(values)
    shown_runs = [paper_tables.read_runs(variant, row.num_seeds) for variant in _list_shown_variants(row)]
    cells[0] = mark_fault(row.title, *shown_runs)
    cells[1] = f"{len(values)}" if len(values) == row.num_seeds else f"{len(values)} of {row.num_seeds}"
    bounds = (-200.0, 200.0) if row.minus_gain_of else (0.0, 100.0)
    cells[3:5] = f"{mean:{sign}.2f} ({format_std(values)})", format_interval(values, f"{sign}.2f", bounds)
    cells[5] = NO_VALUE if row.paper_value is None else f"{mean - row.paper_value:+.2f}"
    if row.variant != paper_tables.get_baseline(row.variant) and row.minus_gain_of is None:
        differences = list(compute_gains(paper_tables, row.variant, row.num_seeds).values())
        difference, paper_gain = compare_with_zero(differences), find_paper_gain(paper_tables, table, row)
        cells[6] = f"{statistics.fmean(differences):+.2f}" if differences else NO_VALUE
        cells[7] = format_interval(differences, "+.2f")
        cells[8] = NO_VALUE if difference is None else f"{difference.detectable:.2f}"
        cells[9] = NO_VALUE if paper_gain is None else f"{paper_gain:+.1f}"
        cells[10] = format_gradient_ratio(shown_runs[0])
    return [use_minus_sign(cell) for cell in cells]


def _compute_values(paper_tables: PaperTables, row: TableRow) -> list[float]:
    """Return the values of a table row, one per seed."""
    if row.minus_gain_of is None:
        return list(read_top1(paper_tables.read_runs(row.variant, row.num_seeds)).values())
    gains = compute_gains(paper_tables, row.variant, row.num_seeds)
    other_gains = compute_gains(paper_tables, row.minus_gain_of, row.num_seeds)
    return [gains[seed] - other_gains[seed] for seed in gains if seed in other_gains]


def _format_top5(paper_tables: PaperTables, row: TableRow) -> str:
    runs = paper_tables.read_runs(row.variant, row.num_seeds)
    top5 = [record["test_results"][0]["top5"] for record in runs.values()]
    return f"{statistics.fmean(top5):.2f} ({format_std(top5)})" if top5 else ""
