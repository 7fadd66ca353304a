"""Tables that compare binarization methods: published accuracy, and accuracy here without and with LCR."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from lcrbnn.evaluation.table_cells import (
    NO_VALUE,
    NOT_RUN,
    format_interval,
    format_markdown_table,
    format_std,
    use_minus_sign,
)
from lcrbnn.nn.methods.method_registry import get_method
from paper.tables.published import find_published
from paper.tables.table_spec import (
    PaperTable,
    PaperTables,
    TableRow,
    TableVariant,
    format_gradient_ratio,
    read_top1,
)

LCR_SUFFIX = "-lcr"  # ending of the names of variants with LCR
NOT_DECIDED = "not decided"
COLUMNS = ("method", "bits", "network", "published", "ours", "with LCR", "difference", "gradient ratio")
ABOUT_COMPARISON = f"""In the tables that compare methods, each row shows one variant of a plan without LCR and the same
variant with LCR. The name of a variant with LCR ends in `{LCR_SUFFIX}`. `lcrbnn methods` lists the names and bits of
all methods. If a method has several bases or several signs per activation, they are counted as one bit. The column
*published* contains the accuracy that the authors of the method publish, mostly of their best epoch. If their network
or setting differs from ours, the cell states the difference (`paper/tables/published.py`). “in Table 1” and “in Table
2” mark values as the paper prints them. A screening has only one run per variant. It gives a first estimate of the
accuracy of a method, but it does not decide any question.
"""


def render_comparison(paper_tables: PaperTables, table: PaperTable) -> str:
    """Return a Markdown table. Each row has a variant without LCR and the same variant with LCR."""
    rows = [row for row in table.rows if not row.variant.name.endswith(LCR_SUFFIX)]
    return format_markdown_table(COLUMNS, [_format_row(paper_tables, row) for row in rows])


def _format_row(paper_tables: PaperTables, row: TableRow) -> list[str]:
    spec = paper_tables.get_plan(row.variant.study).variants.get(row.variant.name)
    if spec is None:
        return [row.title, "", "", "", NOT_DECIDED, NOT_DECIDED, "", ""]
    method = get_method(spec.method, spec.bits or None)
    lcr_runs = paper_tables.read_runs(TableVariant(row.variant.study, row.variant.name + LCR_SUFFIX), row.num_seeds)
    without, with_lcr = read_top1(paper_tables.read_runs(row.variant, row.num_seeds)), read_top1(lcr_runs)
    return [
        ", ".join([method.name, *spec.method_options]),
        method.bit_widths,
        spec.model,
        find_published(method.name, method.bit_widths, spec.model),
        _format_accuracy(without, row.num_seeds),
        _format_accuracy(with_lcr, row.num_seeds),
        _format_difference(without, with_lcr),
        format_gradient_ratio(lcr_runs),
    ]


def _format_accuracy(top1: Mapping[int, float], num_seeds: int) -> str:
    """Return the mean accuracy as text.

    With several seeds, the standard deviation is added. If runs are missing, their number is added.
    """
    if not top1:
        return NOT_RUN
    values = list(top1.values())
    std = f" ({format_std(values)})" if num_seeds > 1 else ""
    count = f", {len(values)} of {num_seeds}" if len(values) < num_seeds else ""
    return f"{statistics.fmean(values):.2f}{std}{count}"


def _format_difference(without: Mapping[int, float], with_lcr: Mapping[int, float]) -> str:
    """Return the mean difference over the common seeds. With several seeds, its interval is added."""
    differences = [with_lcr[seed] - without[seed] for seed in without if seed in with_lcr]
    if not differences:
        return ""
    interval = format_interval(differences, "+.2f")
    return use_minus_sign(f"{statistics.fmean(differences):+.2f}" + (f" {interval}" if interval != NO_VALUE else ""))
