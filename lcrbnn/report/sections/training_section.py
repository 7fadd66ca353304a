"""Sections of a report about training, with settings, accuracies and training curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from lcrbnn.evaluation.table_cells import NO_VALUE
from lcrbnn.lcr.sigma_ratios import NOT_AVAILABLE, mean_ratio_gap
from lcrbnn.report.elements import Axis, CommandHint, Element, LineChart, LineSeries, Table
from lcrbnn.report.measures import (
    STAR_EXPLANATION,
    Measure,
    make_comparison_table,
    make_difference_chart,
    make_mean_chart,
)
from lcrbnn.report.run_groups import ReportRun, RunGroup
from lcrbnn.train.setup.build_network import build_lcr_variant
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.spec import TrainSpec

# Minimum number of classes for top-5 accuracy. With fewer classes it is close to 100 % for every network.
MIN_CLASSES_FOR_TOP5 = 20


def get_test_top1(run: ReportRun) -> float | None:
    """Return the test accuracy in percent of the first recorded test. Later tests of the same run are ignored."""
    return _get_first_test_result(run, "top1")


def get_test_top5(run: ReportRun) -> float | None:
    """Return the top-5 test accuracy in percent, or None for data sets with few classes."""
    return _get_first_test_result(run, "top5") if _shows_top5(run) else None


def _get_first_test_result(run: ReportRun, key: str) -> float | None:
    results = [] if run.record is None else run.record.get("test_results", [])
    values = [
        _get_finite(result, key) for result in results if isinstance(result, dict) and result.get("split") == "test"
    ]
    return next((float(value) for value in values if value is not None), None)


def get_valid_top1(run: ReportRun) -> float | None:
    """Return the validation accuracy in percent after the last epoch, or None without validation images."""
    return _get_finite(run.last_line, "valid_top1")


def get_valid_top5(run: ReportRun) -> float | None:
    """Return the top-5 validation accuracy in percent, or None for data sets with few classes."""
    return _get_finite(run.last_line, "valid_top5") if _shows_top5(run) else None


def _shows_top5(run: ReportRun) -> bool:
    return find_dataset(run.spec).num_classes >= MIN_CLASSES_FOR_TOP5


def get_train_top1(run: ReportRun) -> float | None:
    """Return the accuracy in percent on the (augmented) training images during the last epoch."""
    return _get_finite(run.last_line, "train_top1")


def _get_finite(mapping: Mapping[str, Any], key: str) -> float | None:
    value = mapping.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def get_ratio_gap(run: ReportRun) -> float | None:
    """Return the mean of |sigma_B / sigma_F - 1| over the measured layers or blocks, after the last epoch."""
    return _compute_ratio_gap(run.last_line)


def _compute_ratio_gap(line: Mapping[str, Any]) -> float | None:
    gap = mean_ratio_gap(line.get("sigma_ratios") or ())
    return gap if math.isfinite(gap) else None


def explain_incomparable_ratios(groups: Sequence[RunGroup]) -> str:
    """Return a sentence if the groups define their σ_B/σ_F ratios differently. Otherwise return an empty string."""
    definitions = {}
    for group in groups:
        if group.values_by_seed(get_ratio_gap) or any(
            _compute_ratio_gap(line) for run in group.runs.values() for line in run.log_lines
        ):
            variant = build_lcr_variant(group.spec)
            definitions[group.name] = f"{variant.matrix}, {variant.normalization} normalization, {variant.granularity}"
    if len(set(definitions.values())) < 2:
        return ""
    listing = "; ".join(f"{name}: {definition}" for name, definition in definitions.items())
    return f"The groups define the ratio σ_B / σ_F differently ({listing}), so the ratios are not compared."


def explain_missing_ratios(groups: Sequence[RunGroup]) -> str:
    """Return a sentence if ratios of the last epoch are NaN, else an empty string."""
    counts = {}
    for group in groups:
        ratios = [run.last_line.get("sigma_ratios") or () for run in group.runs.values()]
        num_missing = max((sum(map(math.isnan, run_ratios)) for run_ratios in ratios), default=0)
        if num_missing:
            counts[group.name] = f"{group.name}: {num_missing} of {max(map(len, ratios))}"
    if not counts:
        return ""
    return (
        f"Some ratios σ_B / σ_F are {NOT_AVAILABLE} ({'; '.join(counts.values())}), because the binary feature maps "
        "have only one sign there. The means leave them out."
    )


ACCURACIES = (
    Measure("test, %", get_test_top1),
    Measure("test, top-5, %", get_test_top5),
    Measure("validation, %", get_valid_top1),
    Measure("validation, top-5, %", get_valid_top5),
    Measure("training, last epoch, %", get_train_top1),
)

# Titles of the rows of the settings table, and functions that format their cells.
SETTING_ROWS: dict[str, Callable[[TrainSpec], str]] = {
    "data": lambda s: f"{s.dataset}, training images: {s.train_split}",
    "network": lambda s: s.model,
    "binarisation": lambda s: f"{s.method} {s.bits}".strip() + _format_options(s.method_options),
    "retention (LCR)": lambda s: _format_lcr(s),
    "teacher": lambda s: f"{s.teacher}, distillation {s.distillation_alpha:g}" if s.teacher else "",
    "epochs": lambda s: f"{s.epochs}, batch size {s.batch_size}",
    "optimiser": lambda s: (
        f"{s.optimizer}, learning rate {s.lr:g}, momentum {s.momentum:g}, weight decay {s.weight_decay:g}"
    ),
    "schedule": lambda s: s.lr_schedule + (f", warm-up {s.lr_warmup_epochs:g} epochs" if s.lr_warmup_epochs else ""),
    "augmentation": lambda s: s.augmentation,
    "precision": lambda s: s.precision,
}


def _format_options(options: Sequence[str]) -> str:
    return f" ({', '.join(options)})" if options else ""


def _format_lcr(spec: TrainSpec) -> str:
    if not spec.uses_lcr:
        return "none"
    strength = (
        f"gradient ratio {spec.lcr_gradient_ratio:g}" if spec.lcr_gradient_ratio > 0 else f"λ {spec.lcr_weight:g}"
    )
    warmup = f", warm-up {spec.lcr_warmup_epochs:g} epochs" if spec.lcr_warmup_epochs else ""
    return f"variant {spec.lcr_variant}{_format_options(spec.lcr_options)}, {strength}{warmup}"


def build_training_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section with settings, hardware and dates of each group, and a sentence about settings that differ."""
    rows = [
        (title, *(format_setting(group.spec) for group in groups)) for title, format_setting in SETTING_ROWS.items()
    ]
    rows = [row for row in rows if any(row[1:])]
    rows.append(("seeds", *(", ".join(map(str, group.runs)) for group in groups)))
    rows.append(("time per run", *(_format_training_time(group) for group in groups)))
    rows += [(title, *(_list_environment(group, name) for group in groups)) for title, name in ENVIRONMENT_ROWS.items()]
    elements: list[Element] = [
        Table("Settings", ("", *(group.name for group in groups)), tuple(rows), is_numeric=False)
    ]
    if len(groups) > 1:
        settings = "; ".join(_list_differing_settings(groups))
        equal = "All groups have the same settings."
        elements.insert(0, f"Settings that differ between the groups: {settings}." if settings else equal)
    return elements


def _list_differing_settings(groups: Sequence[RunGroup]) -> list[str]:
    differences = []
    for setting in fields(TrainSpec):
        values = [getattr(group.spec, setting.name) for group in groups]
        if setting.name != "seed" and any(value != values[0] for value in values):
            texts = map(_format_value, values)
            differences.append(f"{setting.name} ({' / '.join(text or NO_VALUE for text in texts)})")
    return differences


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


ENVIRONMENT_ROWS = {"hardware": "gpu", "torch": "torch", "commit": "commit", "date": "date"}


def _list_environment(group: RunGroup, name: str) -> str:
    """Return the different values of one environment entry. If "gpu" is missing, use the name of the CPU."""
    values = []
    for run in group.runs.values():
        if run.record is not None:
            stored = run.record.get("environment")
            environment = {**(stored if isinstance(stored, dict) else {}), "date": run.record.get("date")}
            values.append(environment.get(name) or (environment.get("cpu") if name == "gpu" else None))
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or "not finished"


def _format_training_time(group: RunGroup) -> str:
    times = group.values_by_seed(lambda run: None if run.record is None else run.record["figures"].get("seconds"))
    seconds = [value for value in times.values() if isinstance(value, int | float)]
    if not seconds:
        return NO_VALUE
    mean = statistics.fmean(seconds)
    return f"{mean / 60:.1f} minutes" if mean >= 120 else f"{mean:.1f} seconds"


def build_accuracy_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section with mean accuracies, their intervals, differences to the first group, and all seeds."""
    elements: list[Element] = [
        "Means over seeds with 95 % intervals (Student's t). Differences are paired by seed. " + STAR_EXPLANATION
    ]
    description, axis = "Means over seeds with 95 % intervals.", Axis("accuracy, %")
    elements += make_mean_chart(groups, "Accuracy", description, axis, "images", _get_accuracies)
    description = "Paired by seed, with 95 % intervals. Above 0: better than the first group."
    axis = Axis("difference, percentage points")
    elements += make_difference_chart(groups, "Difference in accuracy", description, axis, "images", _get_accuracies)
    if table := make_comparison_table("Accuracy", groups, ACCURACIES):
        elements.append(table)
    elements.append(_make_seed_table(groups))
    unfinished = [f"{group.name}, seed {s}" for group in groups for s, run in group.runs.items() if not run.is_finished]
    if unfinished:
        elements.append(f"Unfinished runs, not included in any accuracy: {'; '.join(unfinished)}.")
    missing = [group.name for group in groups if len(group.values_by_seed(get_test_top1)) < len(group.runs)]
    if missing:
        text = f"Some runs of {', '.join(missing)} have no test result. This command evaluates the test set:"
        elements.append(CommandHint(text, "lcrbnn eval RUN --test"))
    return elements


def _get_accuracies(run: ReportRun) -> dict[str, float]:
    accuracies = {measure.title.removesuffix(", %"): measure.get_value(run) for measure in ACCURACIES}
    return {title: value for title, value in accuracies.items() if value is not None}


def _make_seed_table(groups: Sequence[RunGroup]) -> Table:
    get_accuracy = get_test_top1 if any(group.values_by_seed(get_test_top1) for group in groups) else get_train_top1
    images = "test" if get_accuracy is get_test_top1 else "training"
    seeds = sorted({seed for group in groups for seed in group.runs})
    accuracies = [group.values_by_seed(get_accuracy) for group in groups]
    rows = [
        (str(seed), *(f"{by_seed[seed]:.2f}" if seed in by_seed else NO_VALUE for by_seed in accuracies))
        for seed in seeds
    ]
    return Table(f"Accuracy on {images} images by seed, %", ("seed", *(group.name for group in groups)), tuple(rows))


CURVES: dict[str, tuple[str, Callable[[dict[str, Any]], float | None], tuple[float, ...]]] = {
    "Training loss": ("loss", lambda line: line.get("train_loss"), ()),
    "Accuracy on training images": ("accuracy, %", lambda line: line["train_top1"], ()),
    "Accuracy on validation images": ("accuracy, %", lambda line: line["valid_top1"], ()),
    "LCR ratio gap": ("mean |σ_B / σ_F − 1|", _compute_ratio_gap, (0.0,)),
}


def build_curves_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section with charts of loss, accuracies and σ_B/σ_F ratios during training."""
    missing_ratios = explain_missing_ratios(groups)
    elements: list[Element] = [missing_ratios] if missing_ratios else []
    for title, (label, get_value, included_values) in CURVES.items():
        lines = [series for i, group in enumerate(groups) if (series := _make_mean_line(group, i, get_value))]
        if lines:
            description = "Mean over seeds. The band covers all seeds."
            if get_value is _compute_ratio_gap:
                description += " 0 means that binary and real maps have the same spectral norm."
                if incomparable := explain_incomparable_ratios(groups):
                    elements.append(incomparable)
                    continue
            elements.append(LineChart(title, description, Axis("epoch"), Axis(label, included_values), tuple(lines)))
    return elements


def _make_mean_line(
    group: RunGroup, group_index: int, get_value: Callable[[dict[str, Any]], float | None]
) -> LineSeries | None:
    curves = []
    for run in group.runs.values():
        values = {line["epoch"]: get_value(line) for line in run.log_lines}
        curves.append({epoch: v for epoch, v in values.items() if isinstance(v, int | float) and math.isfinite(v)})
    epochs = sorted(set.intersection(*map(set, curves)))
    if not epochs:
        return None
    columns = [[curve[epoch] for curve in curves] for epoch in epochs]
    means = [statistics.fmean(column) for column in columns]
    if len(curves) == 1:
        return LineSeries(group.name, group_index, epochs, means)
    return LineSeries(group.name, group_index, epochs, means, list(map(min, columns)), list(map(max, columns)))
