"""What networks hold and what an image costs them; and where every number of the report is from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lcrbnn.analyze.cost import count
from lcrbnn.report.charts import Hint, Link, Part, Table
from lcrbnn.report.groups import Group
from lcrbnn.report.records import COST, Found, of_kind
from lcrbnn.study.cells import NONE
from lcrbnn.train.build import build_network
from lcrbnn.train.dataset import data_row
from lcrbnn.train.spec import Spec

# Figures of a cost, counted here or in a record, and their titles.
FIGURES = {
    "parameters": "parameters",
    "binary_weights": "of these, kept as one bit",
    "stored_bits": "stored bits",
    "file_bytes": "file, bytes (.bnn)",
    "binary_macs": "binary multiply-accumulates an image",
    "mixed_macs": "1-bit weights times real activations",
    "real_macs": "real multiply-accumulates",
    "element_wise": "element-wise operations",
    "ops": "OPs = FP + BOPs / 64",
}


def cost(groups: Sequence[Group], found: Sequence[Found]) -> list[Part]:
    """A column a kind of network: counts, from its record where there is one, from its modules otherwise."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for group in groups:
        kinds.setdefault((group.spec.model, group.spec.method, group.spec.bits), []).append(group.name)
    columns = [_figures(next(g.spec for g in groups if g.name == names[0]), found) for names in kinds.values()]
    rows = [(title, *(_number(one.get(name)) for one in columns)) for name, title in FIGURES.items()]
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    names = [f"{model} {method} {bits}".strip() for model, method, bits in kinds]
    titles = [f"{name} ({', '.join(which)})" for name, which in zip(names, kinds.values(), strict=True)]
    spec = groups[0].spec
    row = data_row(spec)
    about = f"One image of {row.channels} × {row.image} × {row.image} numbers. "
    about += "Retention adds nothing to a network: it costs training time only."
    parts: list[Part] = [about, Table("Cost of a network", ("", *titles), tuple(rows))]
    if not any(one.get("file_bytes") for one in columns):
        parts.append(Hint("The size of the file is not known. This tells it:", "lcrbnn cost RUN -o RECORDS/cost.json"))
    return parts


def _figures(spec: Spec, found: Sequence[Found]) -> dict[str, Any]:
    row = data_row(spec)
    shape = (row.channels, row.image, row.image)
    wanted = {"model": f"{spec.model} {spec.method}", "shape": list(shape)}
    for one in of_kind(found, COST):
        if not spec.bits and {name: one.record["settings"].get(name) for name in wanted} == wanted:
            return one.record["figures"]
    counted = count(build_network(spec), shape)
    return {name: getattr(counted, name) for name in FIGURES if hasattr(counted, name)}


def _number(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else NONE


def sources(groups: Sequence[Group], found: Sequence[Found], folder: Path) -> list[Part]:
    """A line a run: links to what the report was made from, as paths from the report."""
    rows: list[tuple[str | Link, ...]] = []
    for group in groups:
        for seed, run in group.runs.items():
            for path in dict.fromkeys(run.sources):
                rows.append((f"{group.name}, seed {seed}", _kind(path, run.sources, found), _link(path, folder)))
    for one in of_kind(found, COST):
        rows.append(("cost", "cost", _link(one.path, folder)))
    return [Table("Files", ("run", "kind", "file"), tuple(rows), numbers=False)]


def _kind(path: Path, own: Sequence[Path], found: Sequence[Found]) -> str:
    return "training" if path == own[0] else next((str(o.record.get("kind")) for o in found if o.path == path), "")


def _link(path: Path, folder: Path) -> Link:
    text = os.path.relpath(path.absolute(), folder.absolute())
    return Link(text, text)
