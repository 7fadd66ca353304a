"""Robustness as text: a table a group of runs, and paired differences between groups."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from lcrbnn.corrupt.reader import AS_TRAINED, Reader
from lcrbnn.corrupt.scores import Summary, summarize
from lcrbnn.corrupt.table import CORRUPTIONS, SEVERITIES
from lcrbnn.study.paired import paired

TITLES = {
    "main": "mean of 15",
    "all": "mean of 19",
    "main_worst": "mean of 15, severity 5",
    "all_worst": "mean of 19, severity 5",
    "mce": "mCE (AlexNet 100)",
    "relative_mce": "relative mCE",
}


def table(title: str, readers: Sequence[Reader]) -> str:
    """Errors in percent, the mean over the runs of a group: a line a corruption, then the means, for each head."""
    lines = []
    for head in readers[0].errors:
        runs = "" if len(readers) == 1 else f", mean of {len(readers)} runs"
        lines.append(f"{title}, {head}{runs}: error in %")
        lines.append(f"{'':<24}" + "".join(f"{s:>8}" for s in SEVERITIES) + f"{'mean':>8}")
        for name in [n for n in CORRUPTIONS if n in readers[0].errors[head]]:
            values = [statistics.fmean(column) for column in zip(*(r.errors[head][name] for r in readers), strict=True)]
            mark = "" if CORRUPTIONS[name].main else " (extra)"
            cells = "".join(f"{v:8.2f}" for v in (*values, statistics.fmean(values)))
            lines.append(f"{name + mark:<24}{cells}")
        for name, values in _means(readers, head).items():
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            lines.append(f"{name:<24}{statistics.fmean(values):8.2f}{spread}")
    return "\n".join(lines)


def _means(readers: Sequence[Reader], head: str) -> dict[str, list[float]]:
    """What can be said of a group in one figure a run."""
    found = {"clean": [reader.clean[head] for reader in readers]}
    summaries: list[Summary] = [summarize(r.errors[head], r.clean[head], r.row.image) for r in readers]
    for field, title in TITLES.items():
        values = [getattr(summary, field) for summary in summaries]
        if None not in values:
            found[title] = values
    return found


def comparison(groups: Mapping[str, Sequence[Reader]]) -> Iterator[str]:
    """For each further group with the seeds of the first, its errors minus the first's, paired, with 95 % intervals."""
    first, *others = groups.items()
    seeds = [reader.spec.seed for reader in first[1]]
    for name, readers in others:
        if [reader.spec.seed for reader in readers] != seeds or len(seeds) < 2:
            continue
        yield f"{name} minus {first[0]}, {len(seeds)} pairs, 95 %:"
        for head in readers[0].errors:
            mine, theirs = _means(readers, head), _means(first[1], head)
            for title in mine:
                difference = paired(theirs[title], mine[title])
                decided = " *" if difference.decided else ""
                yield f"  {head if head != AS_TRAINED else '':<20}{title:<24}{difference}{decided}"
