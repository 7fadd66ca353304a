"""What is promised: tables of the paper as rows of arms, in one TOML file, beside which the records lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError, number, refuse_unknown
from lcrbnn.study.arms import read_toml, split_name
from lcrbnn.study.plan import Plan, Runs, control_runs, read_plan, runs_of


class Arm(NamedTuple):
    """An arm of a plan."""

    study: str
    name: str

    def __str__(self) -> str:
        """As it is written: PLAN/ARM."""
        return f"{self.study}/{self.name}"


MAX_SEEDS = 1000  # of a row of a table


@dataclass(frozen=True)
class Row:
    """A row of a table: the figure of an arm over its seeds, or (`than`) a gain compared with another arm's gain."""

    title: str
    of: Arm
    seeds: int  # promised: 0, 1, ... up to so many
    paper: float | None = None  # what the paper has there
    note: str = ""  # about that
    keep: tuple[int, ...] = ()  # seeds whose weights are kept beside the records
    than: Arm | None = None


@dataclass(frozen=True)
class Table:
    """A table of the paper, or one that it lacks."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    layers: bool = False  # whether its rows are compared layer by layer too
    pairs: bool = False  # whether its rows are all arms of some plans, to be shown in pairs: ARM and ARM-lcr
    top5: bool = False  # whether the share of labels among the first five answers is shown


@dataclass
class Promise:
    """The tables, the folder of their plans, the folder of their records: a folder a plan, a folder an arm."""

    path: Path
    studies: Path
    records: Path
    tables: dict[str, Table]
    _plans: dict[str, Plan] = field(default_factory=dict)

    def plan(self, study: str) -> Plan:
        """The plan of this name."""
        if study not in self._plans:
            self._plans[study] = read_plan(self.studies / f"{study}.toml")
        return self._plans[study]

    def control(self, arm: Arm) -> Arm:
        """What an arm is compared with."""
        study, _, name = self.plan(arm.study).control.rpartition("/")
        return Arm(study or arm.study, name)

    def runs(self, arm: Arm, seeds: int) -> Runs:
        """The records of an arm that are there and whose test images were read."""
        found = runs_of(self.plan(arm.study), arm.name, range(seeds), self.records / arm.study)
        return _read(found)

    def control_runs(self, arm: Arm, seeds: int) -> Runs:
        """The same of its control."""
        return _read(control_runs(self.plan(arm.study), range(seeds), self.records / arm.study))

    def arms(self, table: Table) -> dict[Arm, int]:
        """The arms that a table needs, in order, each with its number of seeds."""
        found: dict[Arm, int] = {}
        for row in table.rows:
            pairs = [] if row.than is None else [self.control(row.of), row.of, self.control(row.than), row.than]
            for arm in pairs or [row.of]:
                found[arm] = max(row.seeds, found.get(arm, 0))
        return found

    def kept(self) -> dict[Arm, tuple[int, ...]]:
        """The seeds whose weights are kept, by arm."""
        return {row.of: row.keep for table in self.tables.values() for row in table.rows if row.keep}


def _read(runs: Runs) -> Runs:
    return {seed: record for seed, record in runs.items() if record.get("readings")}


def read_promise(path: Path, records: Path | None = None) -> Promise:
    """Read the file; records lie beside it unless said otherwise."""
    _, given = read_toml(path, "list of tables")
    try:
        refuse_unknown(given, ("studies", "tables"), "part of it")
        if not isinstance(given.get("studies"), str) or not isinstance(given.get("tables"), dict):
            raise InputError("studies names a folder, and tables are there")
        studies = Path(normpath(path.parent / given["studies"]))
        tables = {name: _table(name, table, studies) for name, table in given["tables"].items()}
    except InputError as error:
        raise InputError(f"the list of tables {path}: {error}") from None
    return Promise(path, studies, path.parent if records is None else records, tables)


def _table(name: str, given: Any, studies: Path) -> Table:
    kinds = {"title": str, "source": str, "rows": list, "plans": list, "layers": bool, "top5": bool}
    _check(given, kinds, ("title", "source"), f"table {name}")
    if ("rows" in given) == ("plans" in given):
        raise InputError(f"table {name} lists rows, or plans whose arms are its rows")
    if "plans" in given:
        arms = tuple(row for plan in given["plans"] for row in _every_arm(studies, plan))
        return Table(name, given["title"], given["source"], arms, given.get("layers", False), pairs=True)
    rows = []
    for place, row in enumerate(given["rows"], 1):
        try:
            rows.append(_row(row))
        except InputError as error:
            raise InputError(f"row {place} of table {name}: {error}") from None
    flags = {flag: given.get(flag, False) for flag in ("layers", "top5")}
    return Table(name, given["title"], given["source"], tuple(rows), **flags)


def _every_arm(studies: Path, study: Any) -> list[Row]:
    """A row for each arm of a plan, decided or not."""
    plan = read_plan(studies / f"{study}.toml")
    return [Row(arm, Arm(plan.name, arm), len(plan.seeds)) for arm in (*plan.arms, *plan.waiting)]


def _row(given: Any) -> Row:
    kinds = {"title": str, "of": str, "seeds": int, "paper": float, "note": str, "keep": list, "than": str}
    _check(given, kinds, ("title", "of", "seeds"), "a row")
    number(given["seeds"], "seeds", low=1, high=MAX_SEEDS, whole=True)
    keep = given.get("keep", [])
    if not all(type(seed) is int and 0 <= seed < given["seeds"] for seed in keep):
        raise InputError(f"keep lists some of the seeds; got {keep!r}")
    than = Arm(*split_name(given["than"], "than")) if "than" in given else None
    return Row(
        given["title"],
        Arm(*split_name(given["of"], "of")),
        given["seeds"],
        given.get("paper"),
        given.get("note", ""),
        tuple(keep),
        than,
    )


def _check(given: Any, kinds: Mapping[str, type], needed: tuple[str, ...], what: str) -> None:
    if not isinstance(given, dict):
        raise InputError(f"{what} is a table; got {given!r}")
    refuse_unknown(given, kinds, "part of a table")
    for name in needed:
        if name not in given:
            raise InputError(f"it lacks {name}")
    for name, value in given.items():
        if not isinstance(value, kinds[name]) or (isinstance(value, bool) and kinds[name] is not bool):
            raise InputError(f"{name} is of the wrong kind; got {value!r}")
