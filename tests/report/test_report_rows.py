"""Rows of report tables for groups that differ in matrices, bins or long names."""

from __future__ import annotations

from lcrbnn.report.elements import (
    Histogram,
    LineChart,
)
from tests.report.sample_records import (
    ROOT,
)
from tests.report.test_report_sections import _build, _get_section, _get_table


def test_ratios_of_different_matrices_are_not_compared() -> None:
    arguments = [f"{name}={ROOT / 'paper' / 'results' / 'cifar10-double' / name}" for name in ("none", "paper")]
    report = _build(arguments)
    rows = _get_table(report, "Summary", "Main figures")
    assert not any(title.startswith("retention") for title in rows)
    paragraphs = [part for part in _get_section(report, "Summary") if isinstance(part, str)]
    assert "The groups define the ratio σ_B / σ_F differently" in paragraphs[-1]
    assert "none: gram, l2 normalization, blocks; paper: cross-gram, none normalization, layers" in paragraphs[-1]
    assert not any(
        isinstance(p, LineChart) and p.title == "LCR ratio gap" for p in _get_section(report, "Training curves")
    )


def test_different_bins_have_separate_table_rows() -> None:
    from lcrbnn.report.elements import Axis, HistogramSeries
    from lcrbnn.report.render.chart_description import tabulate_chart

    series = (HistogramSeries("a", 0, -1.0, 1.0, (1.0, 2.0)), HistogramSeries("b", 1, -2.0, 2.0, (3.0, 4.0, 5.0, 6.0)))
    table = tabulate_chart(Histogram("weights", "", Axis("weight"), Axis("density"), series))
    assert [row[0] for row in table.rows] == ["−1.5", "−0.5", "0.5", "1.5"]
    assert [row[1:] for row in table.rows] == [("", "3"), ("1", "4"), ("2", "5"), ("", "6")]


def test_shortened_difference_names_keep_both_names() -> None:
    from lcrbnn.report.render.text import shorten_difference_name

    names = [f"retention-{kind}-{'x' * 40} − control-{'y' * 40}" for kind in ("early", "late")]
    assert all(len(shorten_difference_name(name, 44)) <= 47 for name in names)
    assert shorten_difference_name("a − b", 44) == "a − b"
    assert "y" in shorten_difference_name(names[0], 44)
    assert "x" in shorten_difference_name(names[0], 44)
