"""Groups of runs that are compared seed by seed: which runs, and the table of their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_file
from lcrbnn.runs.folder import RunFolder, runs_in
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import read_record, write_record
from lcrbnn.study.cells import NONE
from lcrbnn.study.paired import paired
from lcrbnn.train.build import read_spec

Groups = dict[str, dict[int, Path]]  # by name, then by seed
Holds = Callable[[Mapping[str, Any]], bool]
Tick = Callable[[str], None]  # told what was done
Figures = Mapping[str, Mapping[int, Mapping[str, float]]]  # by group, seed and figure


def find_groups(given: Iterable[str], other: Callable[[str], tuple[str, int] | None] = lambda place: None) -> Groups:
    """From words such as runs/a/none, lcr=runs/a/lcr or runs/a/none/seed-0: a group is a name, its runs differ in seed.

    Without a name it is that of the folder that holds the seeds. `other` knows the name and seed of what is no run.
    """
    groups: Groups = {}
    for word in given:
        name, sign, place = word.rpartition("=")
        if sign and (not name or name in (".", "..") or "/" in name or "\0" in name):
            raise InputError(f"the name of a group is one of a folder, without a slash; got {word!r}")
        known = other(place)
        for run in runs_in(Path(place)) if known is None else [Path(place)]:
            own, seed = _name_and_seed(run) if known is None else known
            label = name if sign else own
            if seed in groups.setdefault(label, {}):
                raise InputError(f"two runs of the group {label!r} have seed {seed}: say NAME=FOLDER to tell groups")
            groups[label][seed] = run
    return groups


def _name_and_seed(run: Path) -> tuple[str, int]:
    whole = run.absolute()
    return whole.parent.name if whole.name.startswith("seed-") else whole.name, read_spec(RunFolder(run)).seed


def measured(
    records: Path | None,
    groups: Groups,
    kind: str,
    settings: Callable[[Path], dict[str, Any]],
    measure: Callable[[Path, dict[str, Any], Tick], dict[str, Any]],
    parts: int = 1,
    *,
    holds: Holds,
) -> dict[str, dict[int, Any]]:
    """The figures of each run by group and seed; each is written as a record the moment it is there.

    A run whose record in that folder has the same settings is not measured again. Measuring a run has so many `parts`,
    and calls its last argument after each; `holds` says of figures whether all that such a record has is there.
    """
    places = {
        (label, seed): None if records is None else records / label / f"seed-{seed}.json"
        for label, runs in groups.items()
        for seed in runs
    }
    for place in filter(None, places.values()):
        check_output_file(place, "a record")
    bar = Progress(parts * sum(len(runs) for runs in groups.values()))
    found: dict[str, dict[int, Any]] = {}
    for label, runs in groups.items():
        for seed, run in runs.items():
            wanted = settings(run)
            path = places[label, seed]
            figures = _known(path, kind, wanted, holds)
            if figures is None:
                figures = measure(run, wanted, partial(_advance, bar, f"{label}, seed {seed}"))
                if path is not None:
                    write_record(path, kind, wanted, figures)
            else:
                for _ in range(parts):
                    _advance(bar, f"{label}, seed {seed}", "has a record")
            found.setdefault(label, {})[seed] = figures
    return found


def _advance(bar: Progress, run: str, what: str) -> None:
    bar.advance(lambda: f"{run}: {what}")


def _known(path: Path | None, kind: str, wanted: dict[str, Any], holds: Holds) -> dict[str, Any] | None:
    if path is None or not path.exists():
        return None
    record = read_record(path)
    if record.get("kind") != kind or record["settings"] != wanted:
        raise InputError(f"{path} is a record of something else: another folder, or remove it")
    if not holds(record["figures"]):
        raise InputError(f"{path} is damaged: its figures lack something; remove it to measure again")
    return record["figures"]


def compare(figures: Figures, rows: Mapping[str, str], *, shown: str = ".4g") -> str:
    """A line a figure: its mean and deviation in each group, and the paired difference of each later one to the first.

    `rows` are figures and their titles; one that no run has is left out.
    """
    labels = list(figures)
    width = max([len(title) for title in rows.values()] + [4])
    titles = [*labels, *(f"{label} − {labels[0]}" for label in labels[1:])]
    widths = [max(len(title), 18 if i < len(labels) else 34) for i, title in enumerate(titles)]

    def line(first: str, cells: Sequence[str]) -> str:
        return "  ".join([f"{first:<{width}}", *(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))])

    lines = [line("", titles)]
    for name, title in rows.items():
        have = {label: {s: one[name] for s, one in runs.items() if name in one} for label, runs in figures.items()}
        if not any(have.values()):
            continue
        cells = [_mean(list(runs.values()), shown) for runs in have.values()]
        cells += [_difference(have[labels[0]], have[label], shown) for label in labels[1:]]
        lines.append(line(title, cells))
    counts = ", ".join(f"{label} {len(runs)}" for label, runs in figures.items())
    return "\n".join([*lines, f"mean (standard deviation), runs: {counts}; differences seed by seed, 95 % interval"])


def _mean(values: Sequence[float], shown: str) -> str:
    if not values:
        return NONE
    deviation = f" ({statistics.stdev(values):.2g})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{shown}}{deviation}"


def _difference(a: Mapping[int, float], b: Mapping[int, float], shown: str) -> str:
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        return NONE
    found = paired([a[s] for s in seeds], [b[s] for s in seeds])
    star = " *" if found.decided else "  "
    return f"{found.mean:+{shown}} [{found.low:+{shown}}, {found.high:+{shown}}]{star}"
