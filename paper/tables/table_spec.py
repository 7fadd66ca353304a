"""Read the table spec (paper/tables.toml), with the rows, runs and published accuracies of the paper's tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError, check_known_names, check_number
from lcrbnn.runs.old_names import upgrade_table_spec
from lcrbnn.runs.record import has_faulty_power_kernel
from lcrbnn.study.plan import RecordsBySeed, StudyPlan, read_baseline_records, read_plan, read_records
from lcrbnn.study.study_variants import read_toml, split_variant_name

MAX_SEEDS_PER_ROW = 1000
# This mark follows the title of a row if its runs used the faulty power-iteration kernel. paper/docs/results.md
# explains it.
FAULT_MARK = " †"


class TableVariant(NamedTuple):
    """A variant of a study plan."""

    study: str
    name: str

    def __str__(self) -> str:
        """Return the text PLAN/VARIANT."""
        return f"{self.study}/{self.name}"


@dataclass(frozen=True)
class TableRow:
    """A row of a table, with the accuracy of a variant.

    With `minus_gain_of`, it is its gain minus the gain of another variant.
    """

    title: str
    variant: TableVariant
    num_seeds: int  # number of seeds that the row needs; the seeds are 0, 1, ...
    paper_value: float | None = None
    paper_note: str = ""  # text that the table shows after the paper's value
    keep_weights_of_seeds: tuple[int, ...] = ()  # seeds whose weights are stored with the records
    minus_gain_of: TableVariant | None = None
    pool: str = ""  # name of the pooled estimate that contains the gain of this row


@dataclass(frozen=True)
class PaperTable:
    """A table of results in the paper."""

    name: str
    title: str
    source: str  # place of the table in the paper
    rows: tuple[TableRow, ...]
    per_layer: bool = False  # whether the rows are also compared layer by layer
    pairs: bool = False  # whether the rows are all variants of some plans, in pairs of VARIANT and VARIANT-lcr
    show_top5: bool = False


@dataclass
class PaperTables:
    """All tables, the folder of their plans, and the folder of their records PLAN/VARIANT/seed-N.json."""

    path: Path
    plans_folder: Path
    records: Path
    tables: dict[str, PaperTable]
    _plans: dict[str, StudyPlan] = field(default_factory=dict)

    def get_plan(self, study: str) -> StudyPlan:
        """Return the plan with this name. The plan file is only read once."""
        if study not in self._plans:
            self._plans[study] = read_plan(self.plans_folder / f"{study}.toml")
        return self._plans[study]

    def get_baseline(self, variant: TableVariant) -> TableVariant:
        """Return the baseline of a variant, which may be in another plan."""
        study, _, name = self.get_plan(variant.study).baseline.rpartition("/")
        return TableVariant(study or variant.study, name)

    def read_runs(self, variant: TableVariant, num_seeds: int) -> RecordsBySeed:
        """Return the existing records of a variant that have a test result."""
        folder = self.records / variant.study
        return _select_tested(read_records(self.get_plan(variant.study), variant.name, range(num_seeds), folder))

    def read_baseline_runs(self, variant: TableVariant, num_seeds: int) -> RecordsBySeed:
        """Return the existing records of a variant's baseline that have a test result."""
        folder = self.records / variant.study
        return _select_tested(read_baseline_records(self.get_plan(variant.study), range(num_seeds), folder))

    def count_seeds(self, table: PaperTable) -> dict[TableVariant, int]:
        """Return the number of seeds of each variant that a table needs. Variants are in the order of the table."""
        num_seeds: dict[TableVariant, int] = {}
        for row in table.rows:
            variants = [row.variant]
            if row.minus_gain_of is not None:
                variants = [v for pair in (row.variant, row.minus_gain_of) for v in (self.get_baseline(pair), pair)]
            for variant in variants:
                num_seeds[variant] = max(row.num_seeds, num_seeds.get(variant, 0))
        return num_seeds

    def list_seeds_with_weights(self) -> dict[TableVariant, tuple[int, ...]]:
        """Return the seeds whose weights are stored, by variant."""
        return {
            row.variant: row.keep_weights_of_seeds
            for table in self.tables.values()
            for row in table.rows
            if row.keep_weights_of_seeds
        }


def _select_tested(runs: RecordsBySeed) -> RecordsBySeed:
    return {seed: record for seed, record in runs.items() if record.get("test_results")}


def read_table_spec(path: Path, records: Path | None = None) -> PaperTables:
    """Return the tables in a table spec. If `records` is given, it replaces the folder of records in the file."""
    _, content = read_toml(path, "table spec")
    try:
        content = upgrade_table_spec(content)
        check_known_names(content, ("plans_folder", "records", "tables"), "part of it")
        if not isinstance(content.get("plans_folder"), str) or not isinstance(content.get("tables"), dict):
            raise InputError("plans_folder must be the folder of the plans, and tables must be a table")
        plans_folder = Path(normpath(path.parent / content["plans_folder"]))
        tables = {name: _parse_table(name, table, plans_folder) for name, table in content["tables"].items()}
    except InputError as error:
        raise InputError(f"the table spec {path}: {error}") from None
    if records is None:
        records = path.parent / content.get("records", ".")
    return PaperTables(path, plans_folder, records, tables)


def _parse_table(name: str, content: Any, plans_folder: Path) -> PaperTable:
    types = {"title": str, "source": str, "rows": list, "plans": list, "per_layer": bool, "show_top5": bool}
    _check_fields(content, types, ("title", "source"), f"table {name}")
    if ("rows" in content) == ("plans" in content):
        raise InputError(f"table {name} must have either rows or plans")
    if "plans" in content:
        rows = [row for plan in content["plans"] for row in _list_all_variants(plans_folder / f"{plan}.toml")]
    else:
        rows = []
        for number, row in enumerate(content["rows"], 1):
            try:
                rows.append(_parse_row(row))
            except InputError as error:
                raise InputError(f"row {number} of table {name}: {error}") from None
    return PaperTable(
        name,
        content["title"],
        content["source"],
        tuple(rows),
        per_layer=content.get("per_layer", False),
        pairs="plans" in content,
        show_top5=content.get("show_top5", False),
    )


def _list_all_variants(path: Path) -> list[TableRow]:
    """Return one row for each variant of a plan, even for variants whose settings are not decided yet."""
    plan = read_plan(path)
    names = (*plan.variants, *plan.undecided)
    return [TableRow(name, TableVariant(plan.name, name), len(plan.seeds)) for name in names]


def _parse_row(content: Any) -> TableRow:
    types = {
        "title": str,
        "variant": str,
        "num_seeds": int,
        "paper_value": float,
        "paper_note": str,
        "keep_weights_of_seeds": list,
        "minus_gain_of": str,
        "pool": str,
    }
    _check_fields(content, types, ("title", "variant", "num_seeds"), "a row")
    check_number(content["num_seeds"], "num_seeds", low=1, high=MAX_SEEDS_PER_ROW, integer=True)
    seeds = content.get("keep_weights_of_seeds", [])
    if not all(type(seed) is int and 0 <= seed < content["num_seeds"] for seed in seeds):
        raise InputError(f"keep_weights_of_seeds must list some of the seeds; got {seeds!r}")
    variants = {
        key: TableVariant(*split_variant_name(content[key], key))
        for key in ("variant", "minus_gain_of")
        if key in content
    }
    return TableRow(
        content["title"],
        variants["variant"],
        content["num_seeds"],
        content.get("paper_value"),
        content.get("paper_note", ""),
        tuple(seeds),
        variants.get("minus_gain_of"),
        content.get("pool", ""),
    )


def _check_fields(content: Any, types: Mapping[str, type], required: tuple[str, ...], what: str) -> None:
    if not isinstance(content, dict):
        raise InputError(f"{what} must be a table; got {content!r}")
    check_known_names(content, types, "part of a table", "paper/tables/table_spec.py")
    for name in required:
        if name not in content:
            raise InputError(f"{name} is missing")
    for name, value in content.items():
        if not isinstance(value, types[name]) or (isinstance(value, bool) and types[name] is not bool):
            raise InputError(f"{name} must be of type {types[name].__name__}; got {value!r}")


def mark_fault(title: str, *variants: RecordsBySeed) -> str:
    """Return the title of a row, with FAULT_MARK if one of its runs was trained with the faulty kernel."""
    return title + FAULT_MARK if any(map(has_faulty_run, variants)) else title


def has_faulty_run(runs: RecordsBySeed) -> bool:
    """Return whether one of the runs was trained with the faulty kernel."""
    return any(map(has_faulty_power_kernel, runs.values()))


def read_top1(runs: RecordsBySeed) -> dict[int, float]:
    """Return the accuracy of the first test result in percent, by seed."""
    return {seed: record["test_results"][0]["top1"] for seed, record in runs.items()}


def format_gradient_ratio(runs: RecordsBySeed) -> str:
    """Return the gradient ratio of LCR in the last epoch, averaged over runs.

    For runs without LCR, the text is empty.
    """
    ratios = [record["figures"]["last_epoch"].get("lcr_gradient_ratio") for record in runs.values()]
    known_ratios = [ratio for ratio in ratios if ratio is not None]
    return f"{statistics.fmean(known_ratios):.4f}".removeprefix("0") if known_ratios else ""
