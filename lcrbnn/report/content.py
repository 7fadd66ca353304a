"""The content of a report: which sections there are, and what each shows, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lcrbnn.report.charts import Part, Report, Section
from lcrbnn.report.compare import STARRED, Measure, comparison
from lcrbnn.report.cost import cost, sources
from lcrbnn.report.groups import Group, read_groups
from lcrbnn.report.layers import flips_measure, likeness, lipschitz, relative_flips_measure, weights
from lcrbnn.report.records import Found, attach, find_records
from lcrbnn.report.robustness import AS_TRAINED, attacked, corruptions, mean_measure, radii, worst_measure
from lcrbnn.report.samples import samples
from lcrbnn.report.training import accuracy, curves, gap, test_accuracy, trained, unlike_ratios


class Given(NamedTuple):
    """All that a section can be made of."""

    groups: Sequence[Group]
    found: Sequence[Found]
    folder: Path  # of the report: links are paths from it
    picture: Path | None  # to be shown corrupted; one is drawn if there is none
    frost: Path


SHORT = (
    Measure("accuracy on test images, %", test_accuracy),
    mean_measure(AS_TRAINED, "main", "error, mean of 15 corruptions, %"),
    mean_measure(AS_TRAINED, "main_worst", "error, mean of 15 corruptions at severity 5, %"),
    flips_measure("0.08"),
    relative_flips_measure("0.08"),
    Measure("retention, mean |σ_B / σ_F − 1|", gap, ".3f"),
)


def _in_short(given: Given) -> list[Part]:
    unlike = unlike_ratios(given.groups)
    attacks = tuple(worst_measure(eps) for eps in radii(given.groups))
    measures = [one for one in (*SHORT[:3], *attacks, *SHORT[3:]) if not (unlike and one.pick is gap)]
    table = comparison("Main figures", given.groups, measures)
    about = "Means over seeds with 95 % intervals; differences to the first group are paired by seed. " + STARRED
    return [about, table, *([unlike] if unlike else [])] if table else []


WARNINGS = "Warnings"


def _warnings(given: Given) -> list[Part]:
    """Runs whose record is not of the checkpoint next to it."""
    found = [(group.name, seed, run.warning) for group in given.groups for seed, run in group.runs.items()]
    return [f"{name}, seed {seed}: {warning}." for name, seed, warning in found if warning]


SECTIONS: dict[str, Callable[[Given], list[Part]]] = {
    "In short": _in_short,
    "What was trained": lambda given: trained(given.groups),
    "Accuracy": lambda given: accuracy(given.groups),
    "Over training": lambda given: curves(given.groups),
    "Corruptions": lambda given: corruptions(given.groups),
    "What the corruptions look like": lambda given: samples(given.groups[0].spec.data, given.picture, given.frost),
    "Attacks": lambda given: attacked(given.groups),
    "Lipschitz continuity": lambda given: lipschitz(given.groups),
    "Likeness of maps": lambda given: likeness(given.groups),
    "Latent weights": lambda given: weights(given.groups),
    "Cost and size": lambda given: cost(given.groups, given.found),
    "Records": lambda given: sources(given.groups, given.found, given.folder),
}


def find_warnings(report: Report) -> list[str]:
    """The sentences of the section of warnings."""
    return [str(part) for section in report.sections if section.title == WARNINGS for part in section.parts]


def gather(
    runs: Sequence[str],
    records: Sequence[Path],
    *,
    folder: Path,
    picture: Path | None = None,
    frost: Path,
    title: str | None = None,
) -> Report:
    """Read runs and records, and put together what they show."""
    groups = read_groups(runs)
    found = find_records(groups, records)
    attach(groups, found)
    given = Given(groups, found, folder, picture, frost)
    sections = [
        Section(name, tuple(parts))
        for name, make in {WARNINGS: _warnings, **SECTIONS}.items()
        if (parts := make(given))
    ]
    spec = groups[0].spec
    names = tuple(group.name for group in groups)
    count = sum(len(group.runs) for group in groups)
    models = ", ".join(dict.fromkeys(group.spec.model for group in groups))
    lead = f"{count} runs of {models} on {spec.data}: {', '.join(names)}."
    if len(names) > 1:
        lead += f" Differences are to {names[0]}."
    return Report(title or f"{models} on {spec.data}: {' and '.join(names)}", lead, names, tuple(sections))
