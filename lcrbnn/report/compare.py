"""Numbers of groups beside each other: means with intervals, and differences paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lcrbnn.report.charts import Dot, DotSeries, Hint, Part, Table
from lcrbnn.report.groups import Group, Run
from lcrbnn.study.cells import NONE, against_zero
from lcrbnn.study.paired import Paired, paired

Seeds = Mapping[int, float]
Named = Callable[[Run], Mapping[str, float]]  # numbers of a run by their names
LEVEL = "[95\u00a0%]"
STARRED = "* marks a difference whose interval leaves out 0."


class Measure(NamedTuple):
    """A number of a run."""

    title: str
    pick: Callable[[Run], float | None]
    shown: str = ".2f"


def mean_dot(values: Seeds) -> Dot | None:
    """The mean and its 95 % interval; of one value no interval, of none nothing."""
    if not values:
        return None
    known = list(values.values())
    found = against_zero(known)
    mean = statistics.fmean(known)
    return Dot(mean) if found is None else Dot(mean, found.low, found.high)


def difference(ours: Seeds, control: Seeds) -> Paired | None:
    """Ours minus the control's, over the seeds that both have; nothing if there are fewer than two."""
    seeds = sorted(ours.keys() & control.keys())
    return paired([control[s] for s in seeds], [ours[s] for s in seeds]) if len(seeds) > 1 else None


def difference_dot(ours: Seeds, control: Seeds) -> Dot | None:
    """The same as a dot; of one pair without an interval."""
    found = difference(ours, control)
    if found is not None:
        return Dot(found.mean, found.low, found.high)
    seeds = ours.keys() & control.keys()
    return Dot(next(ours[s] - control[s] for s in seeds)) if len(seeds) == 1 else None


def comparison(title: str, groups: Sequence[Group], measures: Sequence[Measure]) -> Table | None:
    """A line a measure that some run has: each group's mean, and its difference to the first group's.

    A number that some runs lack says of how many seeds it is.
    """
    columns = ["", *(f"{group.name}, mean {LEVEL}" for group in groups)]
    columns += [f"{group.name} − {groups[0].name} {LEVEL}" for group in groups[1:]]
    rows = []
    for measure in measures:
        values = [group.values(measure.pick) for group in groups]
        if any(values):
            cells = [measure.title + _partly(groups, values), *(_mean(one, measure.shown) for one in values)]
            rows.append((*cells, *(_difference(one, values[0], measure.shown) for one in values[1:])))
    return Table(title, tuple(columns), tuple(rows)) if rows else None


def _partly(groups: Sequence[Group], values: Sequence[Seeds]) -> str:
    counts = [(len(one), len(group.runs)) for one, group in zip(values, groups, strict=True)]
    if all(known == count for known, count in counts):
        return ""
    return f" ({', '.join(dict.fromkeys(f'{known} of {count}' for known, count in counts))} seeds)"


def _mean(values: Seeds, shown: str) -> str:
    dot = mean_dot(values)
    if dot is None:
        return NONE
    if dot.low is None:
        return _signed(f"{dot.value:{shown}}")
    return _signed(f"{dot.value:{shown}} [{dot.low:{shown}}, {dot.high:{shown}}]")


def _difference(ours: Seeds, control: Seeds, shown: str) -> str:
    found = difference(ours, control)
    pairs = len(ours.keys() & control.keys())
    partly = f" ({pairs} pair{'s' if pairs > 1 else ''})" if pairs < max(len(ours), len(control)) else ""
    if found is None:
        one = difference_dot(ours, control)
        return NONE if one is None else _signed(f"{one.value:+{shown}}") + partly
    star = " *" if found.decided else ""
    return _signed(f"{found.mean:+{shown}} [{found.low:+{shown}}, {found.high:+{shown}}]{star}") + partly


def _signed(text: str) -> str:
    """With minus signs, and an interval that is not broken over lines."""
    head, bracket, tail = text.replace("-", "−").partition("[")
    return head + bracket + tail.replace(" ", "\u00a0")


def by_name(groups: Sequence[Group], rows: Sequence[str], pick: Named) -> list[DotSeries]:
    """A series a group, a dot a row: the mean over its runs of the number that has this name."""
    return [
        DotSeries(group.name, place, tuple(mean_dot(group.values(_of(pick, row))) for row in rows))
        for place, group in enumerate(groups)
    ]


def differences_by_name(groups: Sequence[Group], rows: Sequence[str], pick: Named) -> list[DotSeries]:
    """A series a later group, a dot a row: its paired difference to the first group."""
    made = []
    for place, group in enumerate(groups[1:], 1):
        dots = [difference_dot(group.values(_of(pick, row)), groups[0].values(_of(pick, row))) for row in rows]
        made.append(DotSeries(f"{group.name} − {groups[0].name}", place, tuple(dots)))
    return made


def _of(pick: Named, row: str) -> Callable[[Run], float | None]:
    return lambda run: pick(run).get(row)


def incomplete(groups: Sequence[Group], kind: str, command: str) -> list[Part]:
    """Which groups have runs that were not measured, if any."""
    names = [group.name for group in groups if any(kind not in run.measured for run in group.runs.values())]
    return [Hint(f"Not measured in all runs of {', '.join(names)}. This goes on:", command)] if names else []


def names_in(groups: Sequence[Group], pick: Callable[[Run], Mapping[str, object]]) -> list[str]:
    """All names that some run has, in the order in which they come."""
    return list(dict.fromkeys(name for group in groups for run in group.runs.values() for name in pick(run)))
