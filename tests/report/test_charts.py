"""Charts: round ticks, markers at their values, well-formed SVG, colours with enough contrast for everybody."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.report.elements import (
    Axis,
    Chart,
    Dot,
    DotChart,
    DotSeries,
    HeatMap,
    Histogram,
    HistogramSeries,
    LineChart,
    LineSeries,
)
from lcrbnn.report.render.axis import AxisScale, format_ticks, make_linear_ticks, make_log_ticks
from lcrbnn.report.render.chart_description import describe_chart, tabulate_chart
from lcrbnn.report.render.style import DARK_COLORS, LIGHT_COLORS, MAX_GROUPS
from lcrbnn.report.render.svg import MAX_CELL_OPACITY, WIDTH, render_svg, render_svg_file

CHARTS: dict[str, Chart] = {
    "lines": LineChart(
        "Loss",
        "Two series.",
        Axis("epoch"),
        Axis("loss", (0.0,)),
        (LineSeries("a", 0, [1, 2, 3], [3, 2, 1], [2, 1, 0], [4, 3, 2]), LineSeries("b", 1, [1, 3], [1.5, 2])),
    ),
    "dots": DotChart(
        "Accuracy",
        "Two series.",
        Axis("accuracy, %"),
        ("test", "train"),
        "images",
        (DotSeries("a", 0, (Dot(85, 84, 86), None)), DotSeries("b", 1, (Dot(86), Dot(90)), is_hollow=True)),
        reference_value=85.0,
    ),
    "heat": HeatMap(
        "Errors", "Two rows.", ("fog", "snow"), ("1", "2"), "corruption", "severity", ((10, 20), (40, None)), "%", 40
    ),
    "histogram": Histogram(
        "Weights", "One series.", Axis("weight"), Axis("density"), (HistogramSeries("a", 0, -1, 1, [0.2, 0.5, 0.3]),)
    ),
}


@pytest.mark.parametrize(("low", "high"), [(0, 1), (84.3, 90.1), (-0.46, 1.25), (0, 3e7), (1e-6, 2e-6), (-5, -4.9)])
def test_ticks_are_few_round_and_cover_the_range(low: float, high: float) -> None:
    ticks = make_linear_ticks(low, high)
    assert ticks[0] <= low + 1e-9 * abs(low)
    assert ticks[-1] >= high - 1e-9 * abs(high)
    assert 3 <= len(ticks) <= 8
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])
    assert len(set(format_ticks(ticks))) == len(ticks)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_an_axis_covers_any_range(low: float, width: float) -> None:
    scale = AxisScale.fit([low, low + width], (), (0.0, 100.0))
    positions = [scale(low), scale(low + width)]
    assert all(-1e-6 <= position <= 100 + 1e-6 for position in positions)
    assert positions == sorted(positions)
    assert len(scale.ticks) >= 2


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    assert make_log_ticks(0.3, 200) == [0.1, 1.0, 10.0, 100.0, 1000.0]
    scale = AxisScale.fit([0.1, 10.0], (), (0.0, 100.0), is_log=True)
    assert scale(1.0) == pytest.approx(50)
    assert not AxisScale.fit([0.0, 1.0], (), (0.0, 100.0), is_log=True).is_log  # 0 has no logarithm


def test_axis_numbers_have_equal_digits() -> None:
    assert format_ticks([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert format_ticks([0, 1000, 2000]) == ["0", "1,000", "2,000"]
    assert format_ticks([0, 1e-5]) == ["0", "1e−5"]
    assert format_ticks([0.1, 1, 10, 100]) == ["0.1", "1", "10", "100"]


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_well_formed_with_title_and_description(kind: str) -> None:
    chart = CHARTS[kind]
    tree = ElementTree.fromstring(render_svg_file(chart))
    namespaces = {"s": "http://www.w3.org/2000/svg"}
    assert tree.get("role") == "img"
    title, description = tree.find("s:title", namespaces), tree.find("s:desc", namespaces)
    assert title is not None
    assert description is not None
    assert tree.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text == chart.title
    assert description.text == describe_chart(chart)
    words = " ".join(text.text or "" for text in tree.iter("{http://www.w3.org/2000/svg}text"))
    labels = (
        [chart.row_label, chart.column_label, chart.unit]
        if isinstance(chart, HeatMap)
        else [chart.x.label, chart.row_label if isinstance(chart, DotChart) else chart.y.label]
    )
    assert all(label in words for label in labels)
    assert "<style>" not in render_svg(chart, "a")  # a page contains the style sheet only once


def test_a_dot_is_drawn_at_its_value() -> None:
    svg = render_svg(CHARTS["dots"], "a")
    tick_positions = {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>([\d.]+)</text>', svg)}
    low, high = re.findall(r'class="bar" d="M([\d.]+) [\d.]+L([\d.]+) ', svg)[0]
    assert (float(low), float(high)) == pytest.approx((tick_positions["84"], tick_positions["86"]), abs=0.2)
    middle = re.findall(r'<g class="g0"><path class="bar"[^>]*><path class="dot" d="M([\d.]+) ', svg)[0]
    assert float(middle) == pytest.approx((tick_positions["84"] + tick_positions["86"]) / 2, abs=0.2)
    assert re.findall(r'class="mark" d="M([\d.]+) ', svg) == [middle]


def test_cell_opacity_is_proportional_to_the_value() -> None:
    svg = render_svg(CHARTS["heat"], "a")
    cells = re.findall(r"<g><title>(.*?)</title>.*?fill-opacity=\"([\d.]+)\"", svg)
    assert [name for name, _ in cells] == ["fog, severity 1: 10 %", "fog, severity 2: 20 %", "snow, severity 1: 40 %"]
    assert [float(opacity) for _, opacity in cells] == pytest.approx(
        [MAX_CELL_OPACITY / 4, MAX_CELL_OPACITY / 2, MAX_CELL_OPACITY], abs=0.01
    )


def test_chart_descriptions_and_tables() -> None:
    assert describe_chart(CHARTS["lines"]).endswith(
        "a changes from 3 at 1 to 1 at 3; b changes from 1.5 at 1 to 2 at 3."
    )
    assert "Minimum: 10 % (fog, severity 1). Maximum: 40 % (snow, severity 1)." in describe_chart(CHARTS["heat"])
    assert tabulate_chart(CHARTS["lines"]).rows == (("1", "3", "1.5"), ("2", "2", ""), ("3", "1", "2"))
    assert tabulate_chart(CHARTS["dots"]).rows == (("test", "85 [84, 86]", "86"), ("train", "", "90"))
    assert tabulate_chart(CHARTS["heat"]).rows == (("fog", "10", "20"), ("snow", "40", ""))
    assert [row[1] for row in tabulate_chart(CHARTS["histogram"]).rows] == ["0.2", "0.5", "0.3"]


@pytest.mark.parametrize("num_groups", [1, MAX_GROUPS])
def test_each_group_has_its_own_marker_shape(num_groups: int) -> None:
    series = tuple(DotSeries(f"g{i}", i, (Dot(i),)) for i in range(num_groups))
    svg = render_svg(DotChart("A", "B.", Axis("x"), ("row",), "row", series), "a")
    markers = re.findall(r'class="dot" d="M[\d.]+ [\d.]+([^"]+)"', svg)
    assert len(set(markers)) == num_groups
    assert f"0 0 {WIDTH} " in svg


def test_a_long_row_name_is_shortened_and_complete_in_the_tooltip() -> None:
    name = "a.very.long.name." * 5 + "conv1"
    svg = render_svg(DotChart("A", "B.", Axis("x"), (name,), "layer", (DotSeries("g", 0, (Dot(1, 0, 2),)),)), "a")
    label = re.findall(r'text-anchor="end" class="small">([^<]+)</text>', svg)
    assert label == ["…" + name[-25:]]
    assert f"<title>g, {name}: 1 [0, 2]</title>" in svg


# -- colours: contrast as defined by WCAG, colour blindness by Machado, Oliveira and Fernandes (2009) ------------

COLOR_VISION_MATRICES = {
    "none": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}


def _to_linear_rgb(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _luminance(linear: np.ndarray) -> float:
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _contrast(a: np.ndarray, b: np.ndarray) -> float:
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _to_lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colors", [LIGHT_COLORS, DARK_COLORS], ids=["light", "dark"])
def test_text_and_markers_contrast_with_the_background(colors: dict[str, str]) -> None:
    background = _to_linear_rgb(colors["paper"])
    assert all(_contrast(_to_linear_rgb(colors[name]), background) >= 4.5 for name in ("ink", "soft", "link"))
    assert all(_contrast(_to_linear_rgb(colors[f"g{i}"]), background) >= 3 for i in range(MAX_GROUPS))


@pytest.mark.parametrize("colors", [LIGHT_COLORS, DARK_COLORS], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["cool", "warm"])
def test_text_contrasts_with_the_darkest_cell(name: str, colors: dict[str, str]) -> None:
    def to_rgb(color: str) -> np.ndarray:
        return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])

    cell_color = np.rint(
        MAX_CELL_OPACITY * to_rgb(colors[name]) + (1 - MAX_CELL_OPACITY) * to_rgb(colors["paper"])
    ).astype(int)
    assert (
        _contrast(_to_linear_rgb("#" + "".join(f"{v:02x}" for v in cell_color)), _to_linear_rgb(colors["ink"])) >= 4.5
    )


@pytest.mark.parametrize("vision", COLOR_VISION_MATRICES)
@pytest.mark.parametrize("colors", [LIGHT_COLORS, DARK_COLORS], ids=["light", "dark"])
def test_group_colors_differ_under_color_blindness(colors: dict[str, str], vision: str) -> None:
    perceived = [_to_lab(COLOR_VISION_MATRICES[vision] @ _to_linear_rgb(colors[f"g{i}"])) for i in range(MAX_GROUPS)]
    assert min(math.dist(a, b) for a, b in itertools.combinations(perceived, 2)) >= 11.5
    assert math.dist(perceived[0], perceived[1]) >= 30  # most reports compare two groups
    cool, warm = (_to_lab(COLOR_VISION_MATRICES[vision] @ _to_linear_rgb(colors[name])) for name in ("cool", "warm"))
    assert math.dist(cool, warm) >= 30
