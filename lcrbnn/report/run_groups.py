"""Groups of runs that a report compares seed by seed. The first group is the baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lcrbnn.errors import InputError
from lcrbnn.report.figures.training_curves import LogLines, find_curve_files, find_group_folder, read_training_log
from lcrbnn.report.render.style import MAX_GROUPS
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate_checkpoint import explain_record_mismatch

T = TypeVar("T")


@dataclass
class ReportRun:
    """A run with its settings, log lines, record (if the run is finished) and measurements."""

    path: Path  # path of the run folder or of the record file
    spec: TrainSpec
    log_lines: LogLines
    record: dict[str, Any] | None
    source_files: list[Path]  # paths of all files that were read for this run
    measurements: dict[str, Any] = field(default_factory=dict)  # dictionary: kind of measurement -> parsed record
    warning: str = ""  # reason why the checkpoint in the folder is not that of the record; empty if it is

    @property
    def is_finished(self) -> bool:
        """Return whether the log contains the last epoch."""
        return self.log_lines[-1]["epoch"] >= self.spec.epochs

    @property
    def last_line(self) -> dict[str, Any]:
        """Return the log line of the last epoch, or an empty dictionary for an unfinished run."""
        return self.log_lines[-1] if self.is_finished else {}

    @property
    def checkpoint_digest(self) -> str | None:
        """Return the digest of the last checkpoint, or None for an unfinished run.

        The digest identifies the trained network.
        """
        return None if self.record is None else self.record["figures"].get("checkpoint_sha256")


@dataclass
class RunGroup:
    """Runs that have equal settings but different seeds."""

    name: str
    runs: dict[int, ReportRun]

    @property
    def spec(self) -> TrainSpec:
        """Return the settings of the first run."""
        return next(iter(self.runs.values())).spec

    def values_by_seed(self, get_value: Callable[[ReportRun], T | None]) -> dict[int, T]:
        """Return a dictionary from a seed to a value. Runs for which `get_value` returns None are left out."""
        values = {seed: get_value(run) for seed, run in self.runs.items()}
        return {seed: value for seed, value in values.items() if value is not None}


def read_groups(arguments: Sequence[str]) -> list[RunGroup]:
    """Read the groups that arguments such as runs/a/none, lcr=runs/a/lcr or results/a/none name.

    An argument is a folder of runs or of their records. Without NAME=, a group gets the name of the folder that
    contains its seeds.
    """
    groups: dict[str, RunGroup] = {}
    for argument in arguments:
        name, run_path = _split_argument(argument)
        for path in find_curve_files(run_path):
            label = name or find_group_folder(path.absolute()).name
            _add_run(groups.setdefault(label, RunGroup(label, {})), _read_run(path))
    if len(groups) > MAX_GROUPS:
        raise InputError(f"a report compares at most {MAX_GROUPS} groups; got {len(groups)}: {', '.join(groups)}")
    if len({group.spec.dataset for group in groups.values()}) > 1:
        datasets = ", ".join(f"{group.name} {group.spec.dataset}" for group in groups.values())
        raise InputError(f"all groups of a report must use the same data set; got  {datasets}")
    return list(groups.values())


def _split_argument(argument: str) -> tuple[str, Path]:
    """Split NAME=PATH into name and path. The name is optional, and the path may contain "="."""
    cuts = [i for i, letter in enumerate(argument) if letter == "="]
    if not cuts or Path(argument).exists():
        return "", Path(argument)
    cut = next((i for i in cuts if Path(argument[i + 1 :]).exists()), cuts[-1])
    if cut == 0:
        raise InputError(f"a group is written NAME=FOLDER; got {argument!r}")
    return argument[:cut], Path(argument[cut + 1 :])


def _read_run(path: Path) -> ReportRun:
    log_lines, spec = read_training_log(path)
    if path.is_dir():
        folder = RunFolder(path)
        record = read_record(folder.record_file) if folder.record_file.exists() else None
        source = folder.log_file if record is None else folder.record_file
        return ReportRun(path, spec, log_lines, record, [source], warning=explain_record_mismatch(path))
    return ReportRun(path, spec, log_lines, read_record(path), [path], warning=explain_record_mismatch(path))


def _add_run(group: RunGroup, run: ReportRun) -> None:
    seed = run.spec.seed
    if seed in group.runs:
        raise InputError(f"two runs of the group {group.name!r} have seed {seed}; name the groups by NAME=FOLDER")
    if group.runs and (difference := group.spec.difference(run.spec.replace(seed=group.spec.seed))):
        raise InputError(
            "the runs of group {} must have equal settings; {} is {} and {}".format(group.name, *difference)
        )
    group.runs[seed] = run
