"""Sections of a report about robustness to image corruptions and to adversarial attacks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS, SEVERITIES
from lcrbnn.evaluation.robustness.corruption_record import AS_TRAINED
from lcrbnn.evaluation.robustness.robustness_table import SUMMARY_TITLES
from lcrbnn.report.elements import Axis, CommandHint, Dot, Element, HeatMap
from lcrbnn.report.matched_records import AttackResult, RobustnessResult, first_measurement, measurement_getter
from lcrbnn.report.measures import (
    STAR_EXPLANATION,
    Measure,
    ValuesBySeed,
    collect_names,
    hint_missing_measurements,
    make_comparison_table,
    make_difference_chart,
    make_difference_dot,
    make_mean_chart,
    make_mean_dot,
)
from lcrbnn.report.run_groups import ReportRun, RunGroup

CellValues = tuple[tuple[float | None, ...], ...]
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
    elements += make_difference_chart(
        groups,
        "Difference by corruption",
        "Mean over severities, paired by seed, with 95 % intervals. Below 0: more robust than the first group.",
        Axis("error difference, percentage points"),
        "corruption",
        _get_errors_over_severities,
    )
    for head in collect_names(groups, _get_heads):
        measures = [
            _make_clean_error_measure(head),
            *(make_mean_error_measure(head, name, _add_unit(title)) for name, title in SUMMARY_TITLES.items()),
        ]
        if table := make_comparison_table(f"Errors, {head}", groups, measures):
            elements.append(table)
    return elements + hint_missing_measurements(groups, ROBUSTNESS, ROBUSTNESS_COMMAND)


def _add_unit(title: str) -> str:
    return title if "mCE" in title else f"{title}, error, %"


def _make_heat_maps(groups: Sequence[RunGroup], names: Sequence[str]) -> list[Element]:
    """Return one heat map of mean errors per group and one of differences per group but the first."""
    errors = [[[_get_errors_by_seed(group, name, i) for i in range(5)] for name in names] for group in groups]
    means = [_map_cells(lambda values, _: make_mean_dot(values), cells, cells) for cells in errors]
    max_value = math.ceil(_find_largest(*means) / 10) * 10.0
    rows, columns = tuple(map(_format_corruption, names)), tuple(map(str, SEVERITIES))
    heat_maps: list[Element] = []
    for group, values in zip(groups, means, strict=True):
        if any(v is not None for line in values for v in line):
            title = f"Error under corruption: {group.name}"
            num_runs = sum(ROBUSTNESS in run.measurements for run in group.runs.values())
            description = f"Mean of {num_runs} runs, classifier head as trained."
            labels = (title, description, rows, columns, "corruption", "severity")
            heat_maps.append(HeatMap(*labels, values, "%", max_value))
    for group, cells in zip(groups[1:], errors[1:], strict=True):
        values = _map_cells(make_difference_dot, cells, errors[0])
        if largest := _find_largest(values):
            title = f"Error difference: {group.name} − {groups[0].name}"
            description = "Mean difference over paired seeds. Below 0: more robust than the first group."
            labels = (title, description, rows, columns, "corruption", "severity")
            heat_maps.append(HeatMap(*labels, values, "points", max(math.ceil(largest), 1), is_signed=True))
    return heat_maps


def _map_cells(
    make_dot: Callable[[ValuesBySeed, ValuesBySeed], Dot | None],
    cells: Sequence[Sequence[ValuesBySeed]],
    baselines: Sequence[Sequence[ValuesBySeed]],
) -> CellValues:
    dots = [[make_dot(*pair) for pair in zip(*lines, strict=True)] for lines in zip(cells, baselines, strict=True)]
    return tuple(tuple(None if dot is None else dot.value for dot in line) for line in dots)


def _find_largest(*tables: CellValues) -> float:
    return max((abs(v) for table in tables for line in table for v in line if v is not None), default=0.0)


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
        description, axis = "Means over seeds with 95 % intervals.", Axis("accuracy, %", (0.0,))
        get_accuracies = _accuracy_getter(eps)
        elements += make_mean_chart(groups, f"Under attack, ε = {eps}", description, axis, "attack", get_accuracies)
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
