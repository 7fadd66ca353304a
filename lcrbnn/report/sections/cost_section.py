"""Two sections of a report, about the size and operations of each network, and about the source files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lcrbnn.evaluation.analysis.cost import count_cost
from lcrbnn.evaluation.table_cells import NO_VALUE
from lcrbnn.report.elements import CommandHint, Element, Link, Table
from lcrbnn.report.matched_records import COST, RecordFile, select_records
from lcrbnn.report.run_groups import RunGroup
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.network_file import parse_reference
from lcrbnn.train.setup.spec import TrainSpec

# Dictionary: key of a cost record (or field of a counted cost) -> title of the table row.
COST_TITLES = {
    "parameters": "parameters",
    "binary_weights": "of these, stored as one bit",
    "stored_bits": "stored bits",
    "file_bytes": "file, bytes (.bnn)",
    "binary_macs": "binary multiply-accumulates per image",
    "mixed_macs": "1-bit weights times real activations",
    "real_macs": "real multiply-accumulates",
    "element_wise": "element-wise operations",
    "ops": "OPs = FP + BOPs / 64",
}


def build_cost_section(groups: Sequence[RunGroup], records: Sequence[RecordFile]) -> list[Element]:
    """Return a table with one column per architecture.

    The cost is from a record or, without one, counted from the modules.
    """
    group_names: dict[tuple[str, str, str], list[str]] = {}
    for group in groups:
        group_names.setdefault((group.spec.model, group.spec.method, group.spec.bits), []).append(group.name)
    columns = [
        _find_costs(next(g.spec for g in groups if g.name == network_names[0]), records)
        for network_names in group_names.values()
    ]
    rows = [(title, *(_format_count(costs.get(name)) for costs in columns)) for name, title in COST_TITLES.items()]
    rows = [dataset for dataset in rows if any(cell != NO_VALUE for cell in dataset[1:])]
    network_names = [f"{model} {method} {bits}".strip() for model, method, bits in group_names]
    titles = [
        f"{name} ({', '.join(groups_of_network)})"
        for name, groups_of_network in zip(network_names, group_names.values(), strict=True)
    ]
    spec = groups[0].spec
    dataset = find_dataset(spec)
    introduction = f"One image of {dataset.channels} × {dataset.image_size} × {dataset.image_size} values. "
    introduction += "LCR does not change the deployed network. It only costs training time."
    elements: list[Element] = [introduction, Table("Cost of a network", ("", *titles), tuple(rows))]
    if not any(costs.get("file_bytes") for costs in columns):
        text = "The file size was not measured. This command measures it:"
        elements.append(CommandHint(text, "lcrbnn cost RUN -o RECORDS/cost.json"))
    return elements


def _find_costs(spec: TrainSpec, records: Sequence[RecordFile]) -> dict[str, Any]:
    dataset = find_dataset(spec)
    shape = (dataset.channels, dataset.image_size, dataset.image_size)
    network = {"model": f"{spec.model} {spec.method}", "shape": list(shape)}
    for file in select_records(records, COST):
        if not spec.bits and {name: file.record["settings"].get(name) for name in network} == network:
            return file.record["figures"]
    if parse_reference(spec.model) is not None:
        return {}  # a report executes no network file
    cost = count_cost(build_network(spec), shape)
    return {name: getattr(cost, name) for name in COST_TITLES if hasattr(cost, name)}


def _format_count(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else NO_VALUE


def build_sources_section(
    groups: Sequence[RunGroup], records: Sequence[RecordFile], report_folder: Path
) -> list[Element]:
    """Return a table of the source files of each run. Links to these files are relative to the report."""
    rows: list[tuple[str | Link, ...]] = []
    for group in groups:
        for seed, run in group.runs.items():
            for path in dict.fromkeys(run.source_files):
                rows.append(
                    (
                        f"{group.name}, seed {seed}",
                        _describe_source(path, run.source_files, records),
                        _make_relative_link(path, report_folder),
                    )
                )
    for file in select_records(records, COST):
        rows.append(("cost", "cost", _make_relative_link(file.path, report_folder)))
    return [Table("Files", ("run", "kind", "file"), tuple(rows), is_numeric=False)]


def _describe_source(path: Path, run_sources: Sequence[Path], records: Sequence[RecordFile]) -> str:
    return (
        "training"
        if path == run_sources[0]
        else next((str(o.record.get("kind")) for o in records if o.path == path), "")
    )


def _make_relative_link(path: Path, report_folder: Path) -> Link:
    text = os.path.relpath(path.absolute(), report_folder.absolute())
    return Link(text, text)
