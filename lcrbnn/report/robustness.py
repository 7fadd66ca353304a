"""How networks bear corrupted images and attacks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from lcrbnn.corrupt.reader import AS_TRAINED
from lcrbnn.corrupt.table import CORRUPTIONS, SEVERITIES
from lcrbnn.report.charts import Axis, Dots, HeatMap, Hint, Part
from lcrbnn.report.compare import (
    STARRED,
    Measure,
    by_name,
    comparison,
    difference_dot,
    differences_by_name,
    incomplete,
    mean_dot,
    names_in,
)
from lcrbnn.report.groups import Group, Run
from lcrbnn.report.records import Attacks, Robustness, first_of, of_run
from lcrbnn.study.robustness import TITLES

ERRORS, ATTACK = "robustness", "attack"
READ, MAKE = "lcrbnn robustness RUN", "lcrbnn attack RUN -o RECORDS"


def mean_measure(head: str, name: str, title: str) -> Measure:
    """A mean of a head's errors."""
    return Measure(title, of_run(ERRORS, lambda found: found.means.get(head, {}).get(name)))


def _clean_measure(head: str) -> Measure:
    return Measure("clean images, error, %", of_run(ERRORS, lambda found: found.clean.get(head)))


def _heads(run: Run) -> Mapping[str, object]:
    return of_run(ERRORS, lambda found: found.errors)(run) or {}


def _as_trained(run: Run) -> Mapping[str, list[float]]:
    return of_run(ERRORS, lambda found: found.errors.get(AS_TRAINED))(run) or {}


def _averages(run: Run) -> dict[str, float]:
    return {_title(name): statistics.fmean(values) for name, values in _as_trained(run).items()}


def _title(name: str) -> str:
    row = CORRUPTIONS.get(name)
    return name.replace("_", " ") + ("" if row is None or row.main else " (extra)")


def corruptions(groups: Sequence[Group]) -> list[Part]:
    """Heat maps of errors and of their differences, means, differences by corruption."""
    some: Robustness | None = first_of(ERRORS, groups)
    if some is None:
        return [Hint("No errors under corruption were read. This reads them:", READ)]
    names = names_in(groups, _as_trained)
    parts: list[Part] = [
        f"Errors on {some.images:,} test images under {len(names)} corruptions at five severities. Corrupted "
        f"images: {some.made}. The mean of 15 leaves out the four extra ones. " + STARRED
    ]
    parts += _maps(groups, names)
    rows = tuple(names_in(groups, _averages))
    if len(groups) > 1 and (series := [s for s in differences_by_name(groups, rows, _averages) if any(s.dots)]):
        about = (
            "Mean over severities, paired by seed, with 95 % intervals; left of 0 is more robust than the first group."
        )
        axis = Axis("difference of errors, percentage points")
        parts.append(Dots("Difference by corruption", about, axis, rows, "corruption", tuple(series), mark=0.0))
    for head in names_in(groups, _heads):
        measures = [_clean_measure(head), *(mean_measure(head, name, _unit(title)) for name, title in TITLES.items())]
        if table := comparison(f"Errors, {head}", groups, measures):
            parts.append(table)
    return parts + incomplete(groups, ERRORS, READ)


def _count(group: Group) -> int:
    return sum(ERRORS in run.measured for run in group.runs.values())


def _unit(title: str) -> str:
    return title if "mCE" in title else f"{title}, error, %"


def _maps(groups: Sequence[Group], names: Sequence[str]) -> list[Part]:
    """A map of means a group, then a map of differences a later group."""
    rows, columns = tuple(map(_title, names)), tuple(map(str, SEVERITIES))
    means = [[[mean_dot(_cell(group, n, i)) for i in range(5)] for n in names] for group in groups]
    top = max((dot.value for table in means for line in table for dot in line if dot), default=0.0)
    parts: list[Part] = []
    for group, table in zip(groups, means, strict=True):
        values = tuple(tuple(None if dot is None else dot.value for dot in line) for line in table)
        if any(v is not None for line in values for v in line):
            about = f"Mean of {_count(group)} runs, as trained."
            title = f"Error under corruption: {group.name}"
            parts.append(
                HeatMap(title, about, rows, columns, "corruption", "severity", values, "%", math.ceil(top / 10) * 10.0)
            )
    for group in groups[1:]:
        dots = [[difference_dot(_cell(group, n, i), _cell(groups[0], n, i)) for i in range(5)] for n in names]
        values = tuple(tuple(None if dot is None else dot.value for dot in line) for line in dots)
        most = max((abs(v) for line in values for v in line if v is not None), default=0.0)
        if most:
            about = "Mean difference over paired seeds; below 0 is more robust than the first group."
            title = f"Difference of errors: {group.name} − {groups[0].name}"
            top = max(math.ceil(most), 1)
            parts.append(
                HeatMap(title, about, rows, columns, "corruption", "severity", values, "points", top, signed=True)
            )
    return parts


def _cell(group: Group, name: str, severity: int) -> dict[int, float]:
    return {seed: found[name][severity] for seed, found in group.values(_as_trained).items() if name in found}


def worst_measure(eps: str) -> Measure:
    """What every attack leaves right."""
    return Measure(f"right after all attacks at {eps}, %", of_run(ATTACK, lambda found: found.worst.get(eps)))


def radii(groups: Sequence[Group]) -> list[str]:
    """The radii that some run was attacked at, smallest first, as they are written: 2/255."""
    found = {eps for group in groups for one in group.values(of_run(ATTACK, lambda a: a)).values() for eps in one.worst}
    return sorted(found, key=_radius)


def _radius(eps: str) -> float:
    over, _, under = eps.partition("/")
    return float(over) / float(under or 1)


def attacked(groups: Sequence[Group]) -> list[Part]:
    """What each attack leaves right, and whether the attacks can be trusted."""
    some: Attacks | None = first_of(ATTACK, groups)
    if some is None:
        return [Hint("No attacks were made. This makes them:", MAKE)]
    parts: list[Part] = [
        f"Accuracy on the first {some.images:,} test images when each pixel may move by at most ε of its range. The "
        "worst case counts an image as right if no attack changed its answer; it is an upper bound of what is robust. "
        + STARRED
    ]
    for eps in some.accuracy:
        rows = tuple(names_in(groups, _left(eps)))
        series = tuple(by_name(groups, rows, _left(eps)))
        about = "Means over seeds and their 95 % intervals."
        axis = Axis("images that stay right, %", (0.0,))
        parts.append(Dots(f"Under attack, ε = {eps}", about, axis, rows, "attack", series))
    measures = [Measure("clean images, %", of_run(ATTACK, lambda found: found.clean))]
    measures += [worst_measure(eps) for eps in some.accuracy]
    if table := comparison("Worst case over all attacks", groups, measures):
        parts.append(table)
    if flags := [text for eps in some.accuracy for group in groups if (text := _masked(group, eps))]:
        parts.append("MASKED GRADIENTS: " + " ".join(flags) + " What attacks with gradients call robust there is not.")
    return parts + incomplete(groups, ATTACK, MAKE)


def _left(eps: str) -> Callable[[Run], dict[str, float]]:
    """What each attack leaves right, without one and in the worst case too."""

    def of(found: Attacks) -> dict[str, float]:
        return {"no attack": found.clean, **found.accuracy.get(eps, {}), "worst case": found.worst[eps]}

    return lambda run: of_run(ATTACK, lambda found: of(found) if eps in found.worst else None)(run) or {}


def _masked(group: Group, eps: str) -> str:
    runs = group.values(of_run(ATTACK, lambda found: found.masked.get(eps, False)))
    masked = sum(runs.values())
    return f"{group.name} at {eps}: an attack without gradients wins in {masked} of {len(runs)} runs." if masked else ""
