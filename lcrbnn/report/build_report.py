"""Build the sections of a report from records and write it as HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lcrbnn.errors import InputError, check_output_file, check_output_folder
from lcrbnn.evaluation.robustness.corruption_record import AS_TRAINED
from lcrbnn.report.elements import Element, Report, Section
from lcrbnn.report.matched_records import RecordFile, attach_records, find_records
from lcrbnn.report.measures import STAR_EXPLANATION, Measure, make_comparison_table
from lcrbnn.report.render.html import render_html
from lcrbnn.report.render.markdown import render_markdown
from lcrbnn.report.run_groups import RunGroup, read_groups
from lcrbnn.report.sections.cost_section import build_cost_section, build_sources_section
from lcrbnn.report.sections.layers_section import (
    build_lipschitz_section,
    build_similarity_section,
    build_weights_section,
    make_flips_measure,
    make_relative_flips_measure,
)
from lcrbnn.report.sections.robustness_section import (
    build_attacks_section,
    build_corruptions_section,
    list_radii,
    make_mean_error_measure,
    make_worst_attack_measure,
)
from lcrbnn.report.sections.samples_section import build_samples_section
from lcrbnn.report.sections.training_section import (
    build_accuracy_section,
    build_curves_section,
    build_training_section,
    explain_incomparable_ratios,
    get_ratio_gap,
    get_test_top1,
)
from lcrbnn.runs.atomic_files import write_atomic


class ReportInputs(NamedTuple):
    """Input data available to every report section."""

    groups: Sequence[RunGroup]
    records: Sequence[RecordFile]
    report_folder: Path  # folder of the report file; links in the report are relative to this folder
    sample_image: Path | None  # path of the image that is shown under each corruption; None = a generated image
    frost_folder: Path


SUMMARY_MEASURES = (
    Measure("accuracy on test images, %", get_test_top1),
    make_mean_error_measure(AS_TRAINED, "main", "error, mean over 15 corruptions, %"),
    make_mean_error_measure(AS_TRAINED, "main_worst", "error, mean over 15 corruptions at severity 5, %"),
    make_flips_measure("0.08"),
    make_relative_flips_measure("0.08"),
    Measure("retention, mean |σ_B / σ_F − 1|", get_ratio_gap, ".3f"),
)


def _build_summary_section(inputs: ReportInputs) -> list[Element]:
    incomparable = explain_incomparable_ratios(inputs.groups)
    attacks = tuple(make_worst_attack_measure(eps) for eps in list_radii(inputs.groups))
    measures = [
        measure
        for measure in (*SUMMARY_MEASURES[:3], *attacks, *SUMMARY_MEASURES[3:])
        if not (incomparable and measure.get_value is get_ratio_gap)
    ]
    table = make_comparison_table("Main figures", inputs.groups, measures)
    description = (
        "Means over seeds with 95 % intervals. Differences to the first group are paired by seed. " + STAR_EXPLANATION
    )
    return [description, table, *([incomparable] if incomparable else [])] if table else []


WARNINGS_TITLE = "Warnings"


def _build_warnings_section(inputs: ReportInputs) -> list[Element]:
    """Return a section with one sentence per run whose record does not belong to the checkpoint in its folder."""
    warnings = [(group.name, seed, run.warning) for group in inputs.groups for seed, run in group.runs.items()]
    return [f"{name}, seed {seed}: {warning}." for name, seed, warning in warnings if warning]


SECTIONS: dict[str, Callable[[ReportInputs], list[Element]]] = {
    "Summary": _build_summary_section,
    "Training settings": lambda inputs: build_training_section(inputs.groups),
    "Accuracy": lambda inputs: build_accuracy_section(inputs.groups),
    "Training curves": lambda inputs: build_curves_section(inputs.groups),
    "Corruptions": lambda inputs: build_corruptions_section(inputs.groups),
    "Corruption examples": lambda inputs: build_samples_section(
        inputs.groups[0].spec.dataset, inputs.sample_image, inputs.frost_folder
    ),
    "Attacks": lambda inputs: build_attacks_section(inputs.groups),
    "Lipschitz continuity": lambda inputs: build_lipschitz_section(inputs.groups),
    "Correlation of feature maps": lambda inputs: build_similarity_section(inputs.groups),
    "Latent weights": lambda inputs: build_weights_section(inputs.groups),
    "Cost and size": lambda inputs: build_cost_section(inputs.groups, inputs.records),
    "Records": lambda inputs: build_sources_section(inputs.groups, inputs.records, inputs.report_folder),
}


def list_warnings(report: Report) -> list[str]:
    """Return the sentences of the warnings section."""
    return [
        str(element) for section in report.sections if section.title == WARNINGS_TITLE for element in section.elements
    ]


def build_report(
    runs: Sequence[str],
    record_paths: Sequence[Path],
    *,
    report_folder: Path,
    sample_image: Path | None = None,
    frost_folder: Path,
    title: str | None = None,
) -> Report:
    """Read the runs and records. Return the report with every section that has content."""
    groups = read_groups(runs)
    records = find_records(groups, record_paths)
    attach_records(groups, records)
    inputs = ReportInputs(groups, records, report_folder, sample_image, frost_folder)
    sections = [
        Section(name, tuple(elements))
        for name, build_section in {WARNINGS_TITLE: _build_warnings_section, **SECTIONS}.items()
        if (elements := build_section(inputs))
    ]
    spec = groups[0].spec
    names = tuple(group.name for group in groups)
    num_runs = sum(len(group.runs) for group in groups)
    models = ", ".join(dict.fromkeys(group.spec.model for group in groups))
    introduction = f"{num_runs} runs of {models} on {spec.dataset}: {', '.join(names)}."
    if len(names) > 1:
        introduction += f" Differences are relative to {names[0]}."
    return Report(title or f"{models} on {spec.dataset}: {' and '.join(names)}", introduction, names, tuple(sections))


def check_report_path(path: Path) -> None:
    """Raise InputError if the report file or its folder of charts cannot be written."""
    check_output_file(path, "a report")
    if path.suffix == ".md":
        check_output_folder(path.parent / _charts_folder_name(path), "the charts of a report")


def _charts_folder_name(path: Path) -> str:
    return f"{path.stem}-charts"


def write_report(report: Report, path: Path) -> None:
    """Write all files of a report. The report itself is written last, so every chart to which it links exists."""
    files: dict[Path, bytes] = {}
    if path.suffix == ".md":
        text, charts = render_markdown(report, _charts_folder_name(path))
        files |= {path.parent / name: content for name, content in charts.items()}
    else:
        text = render_html(report)
    files[path] = text.encode()
    try:
        for target, content in files.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, [content])
    except OSError as error:
        raise InputError(f"a report cannot be written to {path}: {error.strerror}") from None
