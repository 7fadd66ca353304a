"""Groups of runs that a report compares seed by seed; the first one is what the others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lcrbnn.errors import InputError
from lcrbnn.report.style import GROUPS
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record
from lcrbnn.study.trajectory import Lines, find_runs, home, read_run
from lcrbnn.train.finished import find_mismatch
from lcrbnn.train.spec import Spec

T = TypeVar("T")


@dataclass
class Run:
    """A run: its settings, its lines over training, its record once it is finished, and what was measured of it."""

    place: Path  # folder, or record
    spec: Spec
    lines: Lines
    record: dict[str, Any] | None
    sources: list[Path]  # files that the report read
    measured: dict[str, Any] = field(default_factory=dict)  # by kind of record
    warning: str = ""  # why the checkpoint next to the record is another one

    @property
    def ended(self) -> bool:
        """Whether its last epoch is there."""
        return self.lines[-1]["epoch"] >= self.spec.epochs

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last epoch; nothing of a run that is on its way."""
        return self.lines[-1] if self.ended else {}

    @property
    def digest(self) -> str | None:
        """Which network it is: that of its last checkpoint."""
        return None if self.record is None else self.record["figures"].get("checkpoint_sha256")


@dataclass
class Group:
    """Runs that differ in their seed."""

    name: str
    runs: dict[int, Run]

    @property
    def spec(self) -> Spec:
        """Of the first run."""
        return next(iter(self.runs.values())).spec

    def values(self, pick: Callable[[Run], T | None]) -> dict[int, T]:
        """Something of each run, by seed, where there is one."""
        found = {seed: pick(run) for seed, run in self.runs.items()}
        return {seed: value for seed, value in found.items() if value is not None}


def read_groups(given: Sequence[str]) -> list[Group]:
    """From words such as runs/a/none, lcr=runs/a/lcr or results/a/none: folders of runs, or of their records.

    Without a name a group is called as the folder that holds its seeds.
    """
    groups: dict[str, Group] = {}
    for word in given:
        name, place = _split(word)
        for path in find_runs(place):
            label = name or home(path.absolute()).name
            _add(groups.setdefault(label, Group(label, {})), _read(path))
    if len(groups) > GROUPS:
        raise InputError(f"a report compares at most {GROUPS} groups; got {len(groups)}: {', '.join(groups)}")
    if len({group.spec.data for group in groups.values()}) > 1:
        shown = ", ".join(f"{group.name} {group.spec.data}" for group in groups.values())
        raise InputError(f"groups of one report learned the same data; got {shown}")
    return list(groups.values())


def _split(word: str) -> tuple[str, Path]:
    """The name, if one is said, and the place; a place may have = in its own name."""
    cuts = [i for i, letter in enumerate(word) if letter == "="]
    if not cuts or Path(word).exists():
        return "", Path(word)
    cut = next((i for i in cuts if Path(word[i + 1 :]).exists()), cuts[-1])
    if cut == 0:
        raise InputError(f"a group is written NAME=FOLDER; got {word!r}")
    return word[:cut], Path(word[cut + 1 :])


def _read(path: Path) -> Run:
    lines, spec = read_run(path)
    if path.is_dir():
        folder = RunFolder(path)
        record = read_record(folder.record) if folder.record.exists() else None
        source = folder.log if record is None else folder.record
        return Run(path, spec, lines, record, [source], warning=find_mismatch(path))
    return Run(path, spec, lines, read_record(path), [path], warning=find_mismatch(path))


def _add(group: Group, run: Run) -> None:
    seed = run.spec.seed
    if seed in group.runs:
        raise InputError(f"two runs of the group {group.name!r} have seed {seed}: say NAME=FOLDER to tell groups apart")
    if group.runs and (differs := group.spec.difference(run.spec.but(seed=group.spec.seed))):
        raise InputError("the runs of {} are not of one group: {} is {} and {}".format(group.name, *differs))
    group.runs[seed] = run
