"""The paper's Figures 2 and 3 as numbers, from the records: latent weights and likeness of maps, layer by layer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from lcrbnn.study.cells import NOT_RUN, interval, markdown, minus
from lcrbnn.study.plan import Runs
from lcrbnn.study.promise import Promise, Row, Table
from lcrbnn.study.readings import mark_fault
from lcrbnn.study.reproduce import LAYERS

ABOUT_WEIGHTS = """Latent weights as they are stored, 10,000 of each layer by chance (all, where there are fewer): the
mean over seeds of their standard deviation, and the difference of each arm to the first, seed by seed, with its 95 %
interval. The paper has 1.42 without and 1.11 with LCR, in one layer of ResNet-18. IR-Net standardises each filter
before the sign, so the width changes nothing that the network computes; the last line has the mean excess kurtosis
over layers, which does not depend on the width."""

ABOUT_MAPS = """The first 128 training images: the mean absolute correlation between the flattened maps of two different
images (each map's own mean removed), of the real maps in front of each convolution and of their signs; in brackets the
mean absolute cosine, which Eq. 7 assumes to be 0. *chance*: the same for independent random maps of that size. The last
line is the rank correlation of depth and likeness: −1 if every layer's maps are more independent than those before it,
as the paper says of later layers, +1 if they are less so."""

KINDS = ("real", "binary")


def layer_tables(promise: Promise) -> Iterator[str]:
    """The sections of the tables that are compared layer by layer."""
    for table in promise.tables.values():
        if table.layers:
            yield f"## Latent weights: {table.title}\n\n{ABOUT_WEIGHTS}\n\n{weight_table(promise, table)}\n"
            yield f"## Likeness of maps: {table.title}\n\n{ABOUT_MAPS}\n\n{map_table(promise, table)}\n"


def weight_table(promise: Promise, table: Table) -> str:
    """A line a layer: the deviation of each arm's latent weights, and how it differs from the first arm's."""
    arms = [(row, _looked(promise, row)) for row in table.rows]
    columns = ["layer", "weights"]
    for place, (row, _) in enumerate(arms):
        title = _title(promise, row)
        columns += [title] if place == 0 else [title, "difference, 95 %"]
    first = next((found for _, found in arms if found), {})
    if not first:
        return markdown(columns, [[NOT_RUN, *[""] * (len(columns) - 1)]])
    rows = []
    for name, seen in next(iter(first.values()))["weights"].items():
        rows.append([f"`{name}`", str(seen["size"]), *_compared(arms, _deviation(name))])
    rows.append(["mean", "", *_compared(arms, lambda seen: _mean_over(seen["weights"], "std"))])
    rows.append(["kurtosis", "", *_compared(arms, lambda seen: _mean_over(seen["weights"], "kurtosis"))])
    return markdown(columns, rows)


def map_table(promise: Promise, table: Table) -> str:
    """A line a layer: the likeness of real and of binary maps of each arm."""
    arms = [(row, _looked(promise, row)) for row in table.rows]
    columns = [
        "maps in front of",
        "size",
        "chance",
        *(f"{_title(promise, row)}, {kind}" for row, _ in arms for kind in KINDS),
    ]
    first = next((found for _, found in arms if found), {})
    if not first:
        return markdown(columns, [[NOT_RUN, *[""] * (len(columns) - 1)]])
    rows = []
    for name, seen in next(iter(first.values()))["maps"].items():
        cells = [f"`{name}`", str(seen["size"]), f"{seen['chance']:.3f}"]
        for _, found in arms:
            cells += [_alike([run["maps"][name].get(kind) for run in found.values()]) for kind in KINDS]
        rows.append(cells)
    ranks = [_ranked(list(found.values()), kind) for _, found in arms for kind in KINDS]
    return markdown(columns, [*rows, ["rank correlation", "", "", *ranks]])


def _title(promise: Promise, row: Row) -> str:
    return mark_fault(row.title, promise.runs(row.of, row.seeds))


def _looked(promise: Promise, row: Row) -> dict[int, dict[str, Any]]:
    runs: Runs = promise.runs(row.of, row.seeds)
    return {seed: record[LAYERS] for seed, record in runs.items() if LAYERS in record}


def _deviation(layer: str) -> Callable[[dict], float]:
    return lambda seen: seen["weights"][layer]["std"]


def _mean_over(layers: dict[str, dict[str, float]], what: str) -> float:
    return statistics.fmean(one[what] for one in layers.values())


def _compared(arms: list[tuple[Row, dict[int, dict]]], value: Callable[[dict], float]) -> list[str]:
    """A number of each arm, and its difference to the first arm's, seed by seed."""
    cells = []
    control = {seed: value(seen) for seed, seen in arms[0][1].items()}
    for place, (_, found) in enumerate(arms):
        ours = {seed: value(seen) for seed, seen in found.items()}
        cells.append(minus(f"{statistics.fmean(ours.values()):.3f}") if ours else NOT_RUN)
        if place > 0:
            pairs = [ours[seed] - control[seed] for seed in ours if seed in control]
            cells.append(minus(f"{statistics.fmean(pairs):+.3f} {interval(pairs, '+.3f')}") if pairs else "")
    return cells


def _alike(found: list[dict[str, float] | None]) -> str:
    known = [one for one in found if one is not None]
    if not known:
        return NOT_RUN if not found else ""
    correlation, cosine = (statistics.fmean(one[what] for one in known) for what in ("correlation", "cosine"))
    return f"{correlation:.3f} ({cosine:.3f})"


def _ranked(runs: list[dict[str, Any]], kind: str) -> str:
    """The mean over runs of Spearman's rank correlation between depth and likeness."""
    found = []
    for run in runs:
        values = [one[kind]["correlation"] for one in run["maps"].values() if kind in one]
        if len(values) > 1:
            found.append(rank_correlation(values))
    return minus(f"{statistics.fmean(found):+.2f}") if found else ""


def rank_correlation(values: list[float]) -> float:
    """Spearman's, of values with their places; equal values share the mean of their ranks."""
    order = sorted(values)
    ranks = [order.index(v) + (order.count(v) - 1) / 2 for v in values]
    return statistics.correlation(ranks, range(len(values))) if len(set(values)) > 1 else 0.0
