"""What was trained and how, how accurate it became, and how it got there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from lcrbnn.report.charts import Axis, Dots, Hint, Line, Lines, Part, Table
from lcrbnn.report.compare import STARRED, Measure, by_name, comparison, differences_by_name, names_in
from lcrbnn.report.groups import Group, Run
from lcrbnn.study.cells import NONE
from lcrbnn.train.build import chosen_form
from lcrbnn.train.dataset import data_row
from lcrbnn.train.spec import Spec

MANY = 20  # classes: of fewer, five answers are too easy to be worth a line


def test_accuracy(run: Run) -> float | None:
    """Percent of the test images, by the first reading that the record notes: later ones are second looks."""
    return _read(run, "top1")


def test_top5(run: Run) -> float | None:
    """Percent of the test images whose class is among the first five answers, of MANY classes or more."""
    return _read(run, "top5") if _has_many(run) else None


def _read(run: Run, what: str) -> float | None:
    readings = [] if run.record is None else run.record.get("readings", [])
    found = [_finite(one, what) for one in readings if isinstance(one, dict) and one.get("split") == "test"]
    return next((float(one) for one in found if one is not None), None)


def valid_accuracy(run: Run) -> float | None:
    """Percent of the validation images after the last epoch, if any were held out."""
    return _finite(run.last, "valid")


def valid_top5(run: Run) -> float | None:
    """The same of the first five answers."""
    return _finite(run.last, "valid_top5") if _has_many(run) else None


def _has_many(run: Run) -> bool:
    return data_row(run.spec).classes >= MANY


def train_accuracy(run: Run) -> float | None:
    """Percent of the training images in the last epoch, as they were learned from."""
    return _finite(run.last, "train")


def _finite(line: Mapping[str, Any], name: str) -> float | None:
    value = line.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def gap(run: Run) -> float | None:
    """Mean |sigma_B / sigma_F - 1| over what retention would watch, at the end."""
    return _gap(run.last)


def _gap(line: Mapping[str, Any]) -> float | None:
    found = statistics.fmean(abs(ratio - 1) for ratio in line["ratios"]) if line.get("ratios") else math.nan
    return found if math.isfinite(found) else None


def unlike_ratios(groups: Sequence[Group]) -> str:
    """Why the groups' ratios cannot be compared: a sentence, or nothing."""
    kinds = {}
    for group in groups:
        if group.values(gap) or any(_gap(line) for run in group.runs.values() for line in run.lines):
            form = chosen_form(group.spec)
            kinds[group.name] = f"{form.matrix} matrices, {form.normalization} maps, of {form.spans}"
    if len(set(kinds.values())) < 2:
        return ""
    shown = "; ".join(f"{name}: {kind}" for name, kind in kinds.items())
    return f"The groups' ratios σ_B / σ_F are of different things ({shown}), so they are not compared."


ACCURACIES = (
    Measure("test, %", test_accuracy),
    Measure("test, top-5, %", test_top5),
    Measure("validation, %", valid_accuracy),
    Measure("validation, top-5, %", valid_top5),
    Measure("training, last epoch, %", train_accuracy),
)

# Titles of the table, and what stands there.
ROWS: dict[str, Callable[[Spec], str]] = {
    "data": lambda s: f"{s.data}, images: {s.images}",
    "network": lambda s: s.model,
    "binarisation": lambda s: f"{s.method} {s.bits}".strip() + _listed(s.method_options),
    "retention (LCR)": lambda s: _retention(s),
    "teacher": lambda s: f"{s.teacher}, distillation {s.distill:g}" if s.teacher else "",
    "epochs": lambda s: f"{s.epochs} of batches of {s.batch}",
    "optimiser": lambda s: f"{s.optimizer}, learning rate {s.lr:g}, momentum {s.momentum:g}, decay {s.weight_decay:g}",
    "schedule": lambda s: s.schedule + (f", warm-up {s.warmup:g} epochs" if s.warmup else ""),
    "augmentation": lambda s: s.augment,
    "arithmetic": lambda s: s.precision,
}


def _listed(options: Sequence[str]) -> str:
    return f" ({', '.join(options)})" if options else ""


def _retention(spec: Spec) -> str:
    if not spec.retains:
        return "none"
    strength = f"share {spec.share:g}" if spec.share > 0 else f"λ {spec.weight:g}"
    ramp = f", over {spec.ramp:g} epochs" if spec.ramp else ""
    return f"form {spec.form}{_listed(spec.form_options)}, {strength}{ramp}"


def trained(groups: Sequence[Group]) -> list[Part]:
    """Settings of each group, what differs between them, where and when it was made."""
    rows = [(title, *(say(group.spec) for group in groups)) for title, say in ROWS.items()]
    rows = [row for row in rows if any(row[1:])]
    rows.append(("seeds", *(", ".join(map(str, group.runs)) for group in groups)))
    rows.append(("time a run", *(_time(group) for group in groups)))
    rows += [(title, *(_made(group, name) for group in groups)) for title, name in MADE.items()]
    parts: list[Part] = [Table("Settings", ("", *(group.name for group in groups)), tuple(rows), numbers=False)]
    differing = _differing(groups)
    if len(groups) > 1:
        same = "The groups differ in nothing but their name."
        parts.insert(0, f"What differs between the groups: {'; '.join(differing)}." if differing else same)
    return parts


def _differing(groups: Sequence[Group]) -> list[str]:
    found = []
    for one in fields(Spec):
        values = [getattr(group.spec, one.name) for group in groups]
        if one.name != "seed" and any(value != values[0] for value in values):
            shown = map(_word, values)
            found.append(f"{one.name} ({' / '.join(text or NONE for text in shown)})")
    return found


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


MADE = {"hardware": "gpu", "torch": "torch", "commit": "commit", "date": "date"}


def _made(group: Group, name: str) -> str:
    """A fact of the records' environment; the processor where there was no GPU."""
    found = []
    for run in group.runs.values():
        if run.record is not None:
            stored = run.record.get("environment")
            environment = {**(stored if isinstance(stored, dict) else {}), "date": run.record.get("date")}
            found.append(environment.get(name) or (environment.get("cpu") if name == "gpu" else None))
    return ", ".join(dict.fromkeys(str(one) for one in found if one)) or "not finished"


def _time(group: Group) -> str:
    found = group.values(lambda run: None if run.record is None else run.record["figures"].get("seconds"))
    seconds = [value for value in found.values() if isinstance(value, int | float)]
    if not seconds:
        return NONE
    mean = statistics.fmean(seconds)
    return f"{mean / 60:.1f} minutes" if mean >= 120 else f"{mean:.1f} seconds"


def accuracy(groups: Sequence[Group]) -> list[Part]:
    """Means with intervals, differences to the first group, every seed."""
    parts: list[Part] = [
        "Means over seeds with 95 % intervals (Student's t); differences are paired by seed. " + STARRED
    ]
    rows = tuple(names_in(groups, _accuracies))
    series = by_name(groups, rows, _accuracies)
    about = "Means over seeds and their 95 % intervals."
    parts.append(Dots("Accuracy", about, Axis("accuracy, %"), rows, "images", tuple(series)))
    differences = differences_by_name(groups, rows, _accuracies)
    if any(dot for one in differences for dot in one.dots):
        about = "Paired by seed, with 95 % intervals; right of 0 is better than the first group."
        axis = Axis("difference, percentage points")
        parts.append(Dots("Difference in accuracy", about, axis, rows, "images", tuple(differences), mark=0.0))
    if table := comparison("Accuracy", groups, ACCURACIES):
        parts.append(table)
    parts.append(_seeds(groups))
    unfinished = [f"{group.name}, seed {s}" for group in groups for s, run in group.runs.items() if not run.ended]
    if unfinished:
        parts.append(f"Not finished, and so in no figure of accuracy: {'; '.join(unfinished)}.")
    missing = [group.name for group in groups if len(group.values(test_accuracy)) < len(group.runs)]
    if missing:
        text = f"Test images were not read for all runs of {', '.join(missing)}. This reads them, once:"
        parts.append(Hint(text, "lcrbnn eval RUN --final"))
    return parts


def _accuracies(run: Run) -> dict[str, float]:
    found = {measure.title.removesuffix(", %"): measure.pick(run) for measure in ACCURACIES}
    return {title: value for title, value in found.items() if value is not None}


def _seeds(groups: Sequence[Group]) -> Table:
    pick = test_accuracy if any(group.values(test_accuracy) for group in groups) else train_accuracy
    images = "test" if pick is test_accuracy else "training"
    seeds = sorted({seed for group in groups for seed in group.runs})
    found = [group.values(pick) for group in groups]
    rows = [(str(seed), *(f"{one[seed]:.2f}" if seed in one else NONE for one in found)) for seed in seeds]
    return Table(f"Accuracy on {images} images by seed, %", ("seed", *(group.name for group in groups)), tuple(rows))


CURVES: dict[str, tuple[str, Callable[[dict[str, Any]], float | None], tuple[float, ...]]] = {
    "Training loss": ("loss", lambda line: line.get("loss"), ()),
    "Accuracy on training images": ("accuracy, %", lambda line: line["train"], ()),
    "Accuracy on validation images": ("accuracy, %", lambda line: line["valid"], ()),
    "Retention over training": ("mean |σ_B / σ_F − 1|", _gap, (0.0,)),
}


def curves(groups: Sequence[Group]) -> list[Part]:
    """Losses, accuracies and ratios over training."""
    parts: list[Part] = []
    for title, (label, pick, include) in CURVES.items():
        lines = [one for i, group in enumerate(groups) if (one := _line(group, i, pick))]
        if lines:
            about = "Mean over seeds; the band holds all of them."
            if pick is _gap:
                about += " 0 means that binary and real maps have the same spectral norm."
                if unlike := unlike_ratios(groups):
                    parts.append(unlike)
                    continue
            parts.append(Lines(title, about, Axis("epoch"), Axis(label, include), tuple(lines)))
    return parts


def _line(group: Group, place: int, pick: Callable[[dict[str, Any]], float | None]) -> Line | None:
    found = []
    for run in group.runs.values():
        values = {line["epoch"]: pick(line) for line in run.lines}
        found.append({epoch: v for epoch, v in values.items() if isinstance(v, int | float) and math.isfinite(v)})
    epochs = sorted(set.intersection(*map(set, found)))
    if not epochs:
        return None
    columns = [[one[epoch] for one in found] for epoch in epochs]
    means = [statistics.fmean(column) for column in columns]
    if len(found) == 1:
        return Line(group.name, place, epochs, means)
    return Line(group.name, place, epochs, means, list(map(min, columns)), list(map(max, columns)))
