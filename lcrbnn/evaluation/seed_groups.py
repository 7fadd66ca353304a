"""Find groups of runs that are compared seed by seed, measure the runs, and render the table of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError, check_output_file
from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.evaluation.table_cells import NO_VALUE
from lcrbnn.lcr.sigma_ratios import NOT_AVAILABLE
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.runs.run_folder import RunFolder, find_runs
from lcrbnn.train.setup.load import read_spec

SeedGroups = dict[str, dict[int, Path]]  # dictionary from a group name to a dictionary from a seed to a run folder
IsComplete = Callable[[Mapping[str, Any]], bool]
ReportProgress = Callable[[str], None]  # function that is called with the name of each finished part
# dictionary: group name -> seed -> name of the figure -> value
GroupFigures = Mapping[str, Mapping[int, Mapping[str, float]]]


def find_groups(
    arguments: Iterable[str], identify_non_run: Callable[[str], tuple[str, int] | None] = lambda source: None
) -> SeedGroups:
    """Return the run folders by group and seed.

    Arguments are, for example, runs/a/none, lcr=runs/a/lcr or runs/a/none/seed-0. The runs of a group differ only in
    their seed. Without NAME=, a group gets the name of the folder that contains the seeds. `identify_non_run` returns
    the name and the seed of a source that is not a run, such as zoo:NAME. For a run it returns None.
    """
    groups: SeedGroups = {}
    for argument in arguments:
        name, separator, source = argument.rpartition("=")
        if separator and (not name or name in (".", "..") or "/" in name or "\0" in name):
            raise InputError(f"a group name must be a valid folder name without a slash; got {argument!r}")
        non_run = identify_non_run(source)
        for run in find_runs(Path(source)) if non_run is None else [Path(source)]:
            default_name, seed = _name_and_seed(run) if non_run is None else non_run
            group = name if separator else default_name
            if seed in groups.setdefault(group, {}):
                raise InputError(f"two runs of the group {group!r} have seed {seed}; name the groups with NAME=FOLDER")
            groups[group][seed] = run
    return groups


def _name_and_seed(run: Path) -> tuple[str, int]:
    folder = run.absolute()
    return folder.parent.name if folder.name.startswith("seed-") else folder.name, read_spec(RunFolder(run)).seed


def measure_groups(
    records_folder: Path | None,
    groups: SeedGroups,
    kind: str,
    build_settings: Callable[[Path], dict[str, Any]],
    measure: Callable[[Path, dict[str, Any], ReportProgress], dict[str, Any]],
    parts_per_run: int = 1,
    *,
    is_complete: IsComplete,
) -> dict[str, dict[int, Any]]:
    """Return the figures of each run by group and seed. As soon as a run is measured, its record is written.

    If a run has a record with the same settings, it is not measured again. `measure` calls its last argument after each
    of the `parts_per_run` parts. `is_complete` returns whether the figures of a record contain all expected entries.
    """
    record_paths = {
        (group, seed): None if records_folder is None else records_folder / group / f"seed-{seed}.json"
        for group, runs in groups.items()
        for seed in runs
    }
    for record_path in filter(None, record_paths.values()):
        check_output_file(record_path, "a record")
    progress_bar = ProgressBar(parts_per_run * sum(len(runs) for runs in groups.values()))
    measured_figures: dict[str, dict[int, Any]] = {}
    for group, runs in groups.items():
        for seed, run in runs.items():
            settings = build_settings(run)
            path = record_paths[group, seed]
            figures = _read_recorded_figures(path, kind, settings, is_complete)
            if figures is None:
                figures = measure(run, settings, partial(_advance, progress_bar, f"{group}, seed {seed}"))
                if path is not None:
                    write_record(path, kind, settings, figures)
            else:
                for _ in range(parts_per_run):
                    _advance(progress_bar, f"{group}, seed {seed}", "already has a record")
            measured_figures.setdefault(group, {})[seed] = figures
    return measured_figures


def _advance(progress_bar: ProgressBar, run: str, part: str) -> None:
    progress_bar.advance(lambda: f"{run}: {part}")


def _read_recorded_figures(
    path: Path | None, kind: str, settings: dict[str, Any], is_complete: IsComplete
) -> dict[str, Any] | None:
    if path is None or not path.exists():
        return None
    record = read_record(path)
    if record.get("kind") != kind or record["settings"] != settings:
        raise InputError(f"{path} is a record with other settings; choose another folder or remove it")
    if not is_complete(record["figures"]):
        raise InputError(f"{path} is damaged: some of its figures are missing; remove it to measure again")
    return record["figures"]


def render_group_comparison(figures: GroupFigures, figure_titles: Mapping[str, str]) -> str:
    """Return a table with one row per figure: mean and std of each group, and paired differences to the first group.

    `figure_titles` maps names of figures to row titles. A figure that no run has is left out. Means
    leave out NaN, and a figure that is NaN in all runs is "n/a".
    """
    groups = list(figures)
    title_width = max([len(title) for title in figure_titles.values()] + [4])
    column_titles = [*groups, *(f"{group} − {groups[0]}" for group in groups[1:])]
    column_widths = [max(len(title), 18 if i < len(groups) else 34) for i, title in enumerate(column_titles)]

    def format_line(first: str, cells: Sequence[str]) -> str:
        return "  ".join(
            [f"{first:<{title_width}}", *(f"{cell:>{w}}" for cell, w in zip(cells, column_widths, strict=True))]
        )

    lines = [format_line("", column_titles)]
    for name, title in figure_titles.items():
        values_by_group = {
            group: {s: run_figures[name] for s, run_figures in runs.items() if name in run_figures}
            for group, runs in figures.items()
        }
        if not any(values_by_group.values()):
            continue
        cells = [_format_mean(list(runs.values())) for runs in values_by_group.values()]
        cells += [_format_difference(values_by_group[groups[0]], values_by_group[group]) for group in groups[1:]]
        lines.append(format_line(title, cells))
    counts = ", ".join(f"{group} {len(runs)}" for group, runs in figures.items())
    return "\n".join([*lines, f"mean (standard deviation), runs: {counts}; differences seed by seed, 95 % interval"])


def _format_mean(values: Sequence[float]) -> str:
    if not values:
        return NO_VALUE
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return NOT_AVAILABLE
    deviation = f" ({statistics.stdev(values):.2g})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{deviation}"


def _format_difference(a: Mapping[int, float], b: Mapping[int, float]) -> str:
    seeds = [s for s in sorted(a.keys() & b.keys()) if not math.isnan(a[s]) and not math.isnan(b[s])]
    if len(seeds) < 2:
        return NO_VALUE
    difference = compare_paired([a[s] for s in seeds], [b[s] for s in seeds])
    significance_mark = " *" if difference.is_significant else "  "
    mean, low, high = (f"{value:+.4g}" for value in (difference.mean, difference.low, difference.high))
    return f"{mean} [{low}, {high}]{significance_mark}"
