"""Sections of a report about robustness to image corruptions and to adversarial attacks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS, SEVERITIES
from lcrbnn.evaluation.robustness.corruption_record import AS_TRAINED
from lcrbnn.evaluation.robustness.robustness_table import SUMMARY_TITLES
from lcrbnn.report.elements import Axis, CommandHint, DotChart, Element, HeatMap
from lcrbnn.report.matched_records import AttackResult, RobustnessResult, first_measurement, measurement_getter
from lcrbnn.report.measures import (
    STAR_EXPLANATION,
    Measure,
    collect_names,
    hint_missing_measurements,
    make_comparison_table,
    make_difference_dot,
    make_difference_series,
    make_mean_dot,
    make_mean_series,
)
from lcrbnn.report.run_groups import ReportRun, RunGroup

ROBUSTNESS, ATTACK = "robustness", "attack"
ROBUSTNESS_COMMAND, ATTACK_COMMAND = "lcrbnn robustness RUN", "lcrbnn attack RUN -o RECORDS"


def make_mean_error_measure(head: str, name: str, title: str) -> Measure:
    """Return the measure of one of the mean errors of a classifier head."""
    return Measure(title, measurement_getter(ROBUSTNESS, lambda result: result.mean_errors.get(head, {}).get(name)))


def _make_clean_error_measure(head: str) -> Measure:
    get_error = measurement_getter(ROBUSTNESS, lambda result: result.clean_errors.get(head))
    return Measure("clean images, error, %", get_error)


def _get_heads(run: ReportRun) -> Mapping[str, object]:
    return measurement_getter(ROBUSTNESS, lambda result: result.errors)(run) or {}


def _get_errors(run: ReportRun) -> Mapping[str, list[float]]:
    return measurement_getter(ROBUSTNESS, lambda result: result.errors.get(AS_TRAINED))(run) or {}


def _get_errors_over_severities(run: ReportRun) -> dict[str, float]:
    return {_format_corruption(name): statistics.fmean(values) for name, values in _get_errors(run).items()}


def _format_corruption(name: str) -> str:
    corruption = CORRUPTIONS.get(name)
    return name.replace("_", " ") + ("" if corruption is None or corruption.is_main else " (extra)")


def build_corruptions_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section about corruptions, with heat maps, differences by corruption, and one table per head."""
    first_result: RobustnessResult | None = first_measurement(ROBUSTNESS, groups)
    if first_result is None:
        return [CommandHint("Corruption errors were not measured. This command measures them:", ROBUSTNESS_COMMAND)]
    names = collect_names(groups, _get_errors)
    elements: list[Element] = [
        f"Errors on {first_result.num_images:,} test images under {len(names)} corruptions at five severities. "
        f"Corrupted images: {first_result.image_source}. The mean over 15 corruptions excludes the four extra ones. "
        + STAR_EXPLANATION
    ]
    elements += _make_heat_maps(groups, names)
    rows = tuple(collect_names(groups, _get_errors_over_severities))
    if len(groups) > 1 and (
        series := [s for s in make_difference_series(groups, rows, _get_errors_over_severities) if any(s.dots)]
    ):
        description = (
            "Mean over severities, paired by seed, with 95 % intervals. Below 0: more robust than the first group."
        )
        axis = Axis("error difference, percentage points")
        elements.append(
            DotChart(
                "Difference by corruption", description, axis, rows, "corruption", tuple(series), reference_value=0.0
            )
        )
    for head in collect_names(groups, _get_heads):
        measures = [
            _make_clean_error_measure(head),
            *(make_mean_error_measure(head, name, _add_unit(title)) for name, title in SUMMARY_TITLES.items()),
        ]
        if table := make_comparison_table(f"Errors, {head}", groups, measures):
            elements.append(table)
    return elements + hint_missing_measurements(groups, ROBUSTNESS, ROBUSTNESS_COMMAND)


def _count_measured(group: RunGroup) -> int:
    return sum(ROBUSTNESS in run.measurements for run in group.runs.values())


def _add_unit(title: str) -> str:
    return title if "mCE" in title else f"{title}, error, %"


def _make_heat_maps(groups: Sequence[RunGroup], names: Sequence[str]) -> list[Element]:
    """Return a heat map of mean errors per group, and a heat map of differences per group except the first."""
    rows, columns = tuple(map(_format_corruption, names)), tuple(map(str, SEVERITIES))
    means = [
        [[make_mean_dot(_get_errors_by_seed(group, name, i)) for i in range(5)] for name in names] for group in groups
    ]
    max_value = max((dot.value for table in means for line in table for dot in line if dot), default=0.0)
    heat_maps: list[Element] = []
    for group, table in zip(groups, means, strict=True):
        values = tuple(tuple(None if dot is None else dot.value for dot in line) for line in table)
        if any(v is not None for line in values for v in line):
            description = f"Mean of {_count_measured(group)} runs, classifier head as trained."
            title = f"Error under corruption: {group.name}"
            heat_maps.append(
                HeatMap(
                    title,
                    description,
                    rows,
                    columns,
                    "corruption",
                    "severity",
                    values,
                    "%",
                    math.ceil(max_value / 10) * 10.0,
                )
            )
    for group in groups[1:]:
        dots = [
            [
                make_difference_dot(_get_errors_by_seed(group, name, i), _get_errors_by_seed(groups[0], name, i))
                for i in range(5)
            ]
            for name in names
        ]
        values = tuple(tuple(None if dot is None else dot.value for dot in line) for line in dots)
        largest = max((abs(v) for line in values for v in line if v is not None), default=0.0)
        if largest:
            description = "Mean difference over paired seeds. Below 0: more robust than the first group."
            title = f"Error difference: {group.name} − {groups[0].name}"
            max_value = max(math.ceil(largest), 1)
            heat_maps.append(
                HeatMap(
                    title,
                    description,
                    rows,
                    columns,
                    "corruption",
                    "severity",
                    values,
                    "points",
                    max_value,
                    is_signed=True,
                )
            )
    return heat_maps


def _get_errors_by_seed(group: RunGroup, name: str, severity: int) -> dict[int, float]:
    return {
        seed: errors[name][severity] for seed, errors in group.values_by_seed(_get_errors).items() if name in errors
    }


def make_worst_attack_measure(eps: str) -> Measure:
    """Return the measure of the accuracy if each image gets the attack that is strongest for this image."""
    get_accuracy = measurement_getter(ATTACK, lambda result: result.worst_accuracy.get(eps))
    return Measure(f"accuracy under all attacks at ε = {eps}, %", get_accuracy)


def list_radii(groups: Sequence[RunGroup]) -> list[str]:
    """Return the attack radii of all runs in ascending order, as strings such as 2/255."""
    radii = {
        eps
        for group in groups
        for result in group.values_by_seed(measurement_getter(ATTACK, lambda attacks: attacks)).values()
        for eps in result.worst_accuracy
    }
    return sorted(radii, key=_parse_radius)


def _parse_radius(eps: str) -> float:
    numerator, _, denominator = eps.partition("/")
    return float(numerator) / float(denominator or 1)


def build_attacks_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section about attacks, with accuracy charts, worst-case table and a warning about masked gradients."""
    first_result: AttackResult | None = first_measurement(ATTACK, groups)
    if first_result is None:
        return [CommandHint("Attacks were not run. This command runs them:", ATTACK_COMMAND)]
    elements: list[Element] = [
        f"Accuracy on the first {first_result.num_images:,} test images if each pixel may change by at most ε of its "
        "range. The worst case counts an image as correct if every attack fails. It is an upper bound of the robust "
        "accuracy. " + STAR_EXPLANATION + STAR_EXPLANATION
    ]
    for eps in first_result.accuracy:
        rows = tuple(collect_names(groups, _accuracy_getter(eps)))
        series = tuple(make_mean_series(groups, rows, _accuracy_getter(eps)))
        description = "Means over seeds with 95 % intervals."
        axis = Axis("accuracy, %", (0.0,))
        elements.append(DotChart(f"Under attack, ε = {eps}", description, axis, rows, "attack", series))
    measures = [Measure("clean images, %", measurement_getter(ATTACK, lambda result: result.clean_accuracy))]
    measures += [make_worst_attack_measure(eps) for eps in first_result.accuracy]
    if table := make_comparison_table("Worst case over all attacks", groups, measures):
        elements.append(table)
    if flags := [
        text for eps in first_result.accuracy for group in groups if (text := _describe_masked_gradients(group, eps))
    ]:
        elements.append(
            "MASKED GRADIENTS: "
            + " ".join(flags)
            + " The accuracy under gradient-based attacks overstates the robustness there."
        )
    return elements + hint_missing_measurements(groups, ATTACK, ATTACK_COMMAND)


def _accuracy_getter(eps: str) -> Callable[[ReportRun], dict[str, float]]:
    """Return a function that gives a run's accuracies without attack, under each attack and in the worst case."""

    def list_accuracies(result: AttackResult) -> dict[str, float] | None:
        if eps not in result.worst_accuracy:
            return None
        return {
            "no attack": result.clean_accuracy,
            **result.accuracy.get(eps, {}),
            "worst case": result.worst_accuracy[eps],
        }

    get_accuracies = measurement_getter(ATTACK, list_accuracies)
    return lambda run: get_accuracies(run) or {}


def _describe_masked_gradients(group: RunGroup, eps: str) -> str:
    runs = group.values_by_seed(measurement_getter(ATTACK, lambda result: result.has_masked_gradients.get(eps, False)))
    num_masked = sum(runs.values())
    if not num_masked:
        return ""
    return f"{group.name} at {eps}: a gradient-free attack is the strongest in {num_masked} of {len(runs)} runs."
