"""Render the paper's Figures 2 and 3 as tables per layer of latent weights and activation correlations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lcrbnn.evaluation.table_cells import NOT_RUN, format_interval, format_markdown_table, use_minus_sign
from paper.tables.run_tables import LAYERS
from paper.tables.table_spec import PaperTable, PaperTables, TableRow, mark_fault

WEIGHTS_TEXT = """The first column of each variant is the standard deviation of the stored latent weights, as mean over
seeds. For every other variant, the table also has the difference to the first variant with its 95 % interval, paired by
seed. Each layer contributes a random sample of 10,000 weights (all weights if it has fewer). For one layer of
ResNet-18, the paper has 1.42 without LCR and 1.11 with LCR. IR-Net standardizes each filter before the sign, so the
standard deviation of latent weights does not change the output of the network. The last row is the excess kurtosis,
averaged over layers. It does not depend on the standard deviation."""

ACTIVATIONS_TEXT = """Each cell is the mean absolute correlation between the flattened activations of two different
images, over the first 128 training images. The columns *real* are for the real activations in front of each
convolution, and the columns *binary* for their signs. The mean of each activation tensor is subtracted first. The
number in brackets is the mean absolute cosine, which Eq. 7 assumes to be 0. *chance* is the correlation of independent
random activations of the same size. The last row is the rank correlation between the depth of a layer and the
correlation of its activations. A value of −1 means that activations are less correlated in each later layer, as the
paper states. A value of +1 means that they are more correlated."""

KINDS = ("real", "binary")

LayersBySeed = dict[int, dict[str, Any]]  # dictionary: seed -> layer measurements in the record of the run


def render_layer_tables(paper_tables: PaperTables) -> Iterator[str]:
    """Yield the sections for those tables that are compared layer by layer."""
    for table in paper_tables.tables.values():
        if table.per_layer:
            weight_table = render_weight_table(paper_tables, table)
            yield f"## Latent weights: {table.title}\n\n{WEIGHTS_TEXT}\n\n{weight_table}\n"
            activation_table = render_activation_table(paper_tables, table)
            yield f"## Correlation of activations: {table.title}\n\n{ACTIVATIONS_TEXT}\n\n{activation_table}\n"


def render_weight_table(paper_tables: PaperTables, table: PaperTable) -> str:
    """Return one row per layer, with standard deviations of the latent weights and differences to the first variant."""
    layers = [_read_layers(paper_tables, row) for row in table.rows]
    columns = ["layer", "weights"]
    for i, row in enumerate(table.rows):
        title = _get_title(paper_tables, row)
        columns += [title] if i == 0 else [title, "difference, 95 %"]
    first_run = _find_first_run(layers)
    if first_run is None:
        return format_markdown_table(columns, [[NOT_RUN, *[""] * (len(columns) - 1)]])
    rows = [
        [f"`{name}`", str(weights["size"]), *_compare_variants(layers, _make_std_reader(name))]
        for name, weights in first_run["weights"].items()
    ]
    for title, field in (("mean", "std"), ("kurtosis", "kurtosis")):
        rows.append([title, "", *_compare_variants(layers, _make_mean_reader(field))])
    return format_markdown_table(columns, rows)


def render_activation_table(paper_tables: PaperTables, table: PaperTable) -> str:
    """Return one row per layer, with correlations of the real and of the binary activations of each variant."""
    layers = [_read_layers(paper_tables, row) for row in table.rows]
    titles = [f"{_get_title(paper_tables, row)}, {kind}" for row in table.rows for kind in KINDS]
    columns = ["activations in front of", "size", "chance", *titles]
    first_run = _find_first_run(layers)
    if first_run is None:
        return format_markdown_table(columns, [[NOT_RUN, *[""] * (len(columns) - 1)]])
    rows = []
    for name, activations in first_run["activations"].items():
        cells = [f"`{name}`", str(activations["size"]), f"{activations['chance']:.3f}"]
        for runs in layers:
            cells += [
                _format_correlation([run["activations"][name].get(kind) for run in runs.values()]) for kind in KINDS
            ]
        rows.append(cells)
    rank_correlations = [_format_rank_correlation(list(runs.values()), kind) for runs in layers for kind in KINDS]
    return format_markdown_table(columns, [*rows, ["rank correlation", "", "", *rank_correlations]])


def _get_title(paper_tables: PaperTables, row: TableRow) -> str:
    return mark_fault(row.title, paper_tables.read_runs(row.variant, row.num_seeds))


def _read_layers(paper_tables: PaperTables, row: TableRow) -> LayersBySeed:
    runs = paper_tables.read_runs(row.variant, row.num_seeds)
    return {seed: record[LAYERS] for seed, record in runs.items() if LAYERS in record}


def _find_first_run(layers: Sequence[LayersBySeed]) -> dict[str, Any] | None:
    return next((run for runs in layers for run in runs.values()), None)


def _make_std_reader(layer: str) -> Callable[[dict[str, Any]], float]:
    def read_std(run: dict[str, Any]) -> float:
        std: float = run["weights"][layer]["std"]
        return std

    return read_std


def _make_mean_reader(field: str) -> Callable[[dict[str, Any]], float]:
    return lambda run: statistics.fmean(weights[field] for weights in run["weights"].values())


def _compare_variants(layers: Sequence[LayersBySeed], read_value: Callable[[dict[str, Any]], float]) -> list[str]:
    """Return the mean value of each variant, and its difference to the first variant.

    Differences are paired by seed.
    """
    cells = []
    baseline = {seed: read_value(run) for seed, run in layers[0].items()}
    for i, runs in enumerate(layers):
        values = {seed: read_value(run) for seed, run in runs.items()}
        cells.append(use_minus_sign(f"{statistics.fmean(values.values()):.3f}") if values else NOT_RUN)
        if i > 0:
            differences = [values[seed] - baseline[seed] for seed in values if seed in baseline]
            interval = format_interval(differences, "+.3f") if differences else ""
            cells.append(use_minus_sign(f"{statistics.fmean(differences):+.3f} {interval}") if differences else "")
    return cells


def _format_correlation(measurements: Sequence[dict[str, float] | None]) -> str:
    known = [measurement for measurement in measurements if measurement is not None]
    if not known:
        return "" if measurements else NOT_RUN
    correlation, cosine = (statistics.fmean(m[field] for m in known) for field in ("correlation", "cosine"))
    return f"{correlation:.3f} ({cosine:.3f})"


def _format_rank_correlation(runs: Sequence[dict[str, Any]], kind: str) -> str:
    """Return the rank correlation of a layer's depth with the correlation of its activations, averaged over runs."""
    coefficients = []
    for run in runs:
        correlations = [layer[kind]["correlation"] for layer in run["activations"].values() if kind in layer]
        if len(correlations) > 1:
            coefficients.append(rank_correlation(correlations))
    return use_minus_sign(f"{statistics.fmean(coefficients):+.2f}") if coefficients else ""


def rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation between values and their positions.

    Equal values have the mean of their ranks.
    """
    order = sorted(values)
    ranks = [order.index(v) + (order.count(v) - 1) / 2 for v in values]
    return statistics.correlation(ranks, range(len(values))) if len(set(values)) > 1 else 0.0
