"""Charts: round numbers, marks at their places, well-formed files, colours that everybody can tell apart."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.report.charts import Axis, Chart, Dot, Dots, DotSeries, HeatMap, Histogram, Line, Lines, Steps
from lcrbnn.report.scale import Scale
from lcrbnn.report.style import DARK, GROUPS, LIGHT
from lcrbnn.report.svg import SHADE, WIDTH, draw, draw_file
from lcrbnn.report.ticks import log_ticks, shown, ticks
from lcrbnn.report.words import describe, numbers

CHARTS: dict[str, Chart] = {
    "lines": Lines(
        "Loss",
        "Of two.",
        Axis("epoch"),
        Axis("loss", (0.0,)),
        (Line("a", 0, [1, 2, 3], [3, 2, 1], [2, 1, 0], [4, 3, 2]), Line("b", 1, [1, 3], [1.5, 2])),
    ),
    "dots": Dots(
        "Accuracy",
        "Of two.",
        Axis("accuracy, %"),
        ("test", "train"),
        "images",
        (DotSeries("a", 0, (Dot(85, 84, 86), None)), DotSeries("b", 1, (Dot(86), Dot(90)), hollow=True)),
        mark=85.0,
    ),
    "heat": HeatMap(
        "Errors", "By hand.", ("fog", "snow"), ("1", "2"), "corruption", "severity", ((10, 20), (40, None)), "%", 40
    ),
    "histogram": Histogram(
        "Weights", "Of one.", Axis("weight"), Axis("density"), (Steps("a", 0, -1, 1, [0.2, 0.5, 0.3]),)
    ),
}


@pytest.mark.parametrize(("low", "high"), [(0, 1), (84.3, 90.1), (-0.46, 1.25), (0, 3e7), (1e-6, 2e-6), (-5, -4.9)])
def test_ticks_are_few_round_and_cover_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low + 1e-9 * abs(low)
    assert found[-1] >= high - 1e-9 * abs(high)
    assert 3 <= len(found) <= 8
    steps = np.diff(found)
    assert np.allclose(steps, steps[0])
    assert len(set(shown(found))) == len(found)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_any_range_has_an_axis_that_holds_it(low: float, reach: float) -> None:
    scale = Scale.over([low, low + reach], (), (0.0, 100.0))
    places = [scale(low), scale(low + reach)]
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
    assert places == sorted(places)
    assert len(scale.ticks) >= 2


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    assert log_ticks(0.3, 200) == [0.1, 1.0, 10.0, 100.0, 1000.0]
    scale = Scale.over([0.1, 10.0], (), (0.0, 100.0), log=True)
    assert scale(1.0) == pytest.approx(50)
    assert not Scale.over([0.0, 1.0], (), (0.0, 100.0), log=True).log  # 0 has no logarithm


def test_numbers_of_an_axis_share_their_digits() -> None:
    assert shown([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert shown([0, 1000, 2000]) == ["0", "1,000", "2,000"]
    assert shown([0, 1e-5]) == ["0", "1e−5"]
    assert shown([0.1, 1, 10, 100]) == ["0.1", "1", "10", "100"]


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_well_formed_and_says_what_it_shows(kind: str) -> None:
    chart = CHARTS[kind]
    tree = ElementTree.fromstring(draw_file(chart))
    space = {"s": "http://www.w3.org/2000/svg"}
    assert tree.get("role") == "img"
    title, about = tree.find("s:title", space), tree.find("s:desc", space)
    assert title is not None
    assert about is not None
    assert tree.get("aria-labelledby") == f"{title.get('id')} {about.get('id')}"
    assert title.text == chart.title
    assert about.text == describe(chart)
    words = " ".join(text.text or "" for text in tree.iter("{http://www.w3.org/2000/svg}text"))
    labels = (
        [chart.row_label, chart.column_label, chart.unit]
        if isinstance(chart, HeatMap)
        else [chart.x.label, chart.row_label if isinstance(chart, Dots) else chart.y.label]
    )
    assert all(label in words for label in labels)
    assert "<style>" not in draw(chart, "a")  # a page has the style sheet once


def test_a_dot_lies_where_its_value_does() -> None:
    drawn = draw(CHARTS["dots"], "a")
    places = {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>([\d.]+)</text>', drawn)}
    low, high = re.findall(r'class="bar" d="M([\d.]+) [\d.]+L([\d.]+) ', drawn)[0]
    assert (float(low), float(high)) == pytest.approx((places["84"], places["86"]), abs=0.2)
    middle = re.findall(r'<g class="g0"><path class="bar"[^>]*><path class="dot" d="M([\d.]+) ', drawn)[0]
    assert float(middle) == pytest.approx((places["84"] + places["86"]) / 2, abs=0.2)
    assert re.findall(r'class="mark" d="M([\d.]+) ', drawn) == [middle]


def test_a_cell_is_as_dark_as_its_value_is_large() -> None:
    drawn = draw(CHARTS["heat"], "a")
    shades = re.findall(r"<g><title>(.*?)</title>.*?fill-opacity=\"([\d.]+)\"", drawn)
    assert [name for name, _ in shades] == ["fog, severity 1: 10 %", "fog, severity 2: 20 %", "snow, severity 1: 40 %"]
    assert [float(shade) for _, shade in shades] == pytest.approx([SHADE / 4, SHADE / 2, SHADE], abs=0.01)


def test_words_and_numbers_of_charts() -> None:
    assert describe(CHARTS["lines"]).endswith("a goes from 3 at 1 to 1 at 3; b goes from 1.5 at 1 to 2 at 3.")
    assert "Least: 10 % (fog, severity 1); most: 40 % (snow, severity 1)." in describe(CHARTS["heat"])
    assert numbers(CHARTS["lines"]).rows == (("1", "3", "1.5"), ("2", "2", ""), ("3", "1", "2"))
    assert numbers(CHARTS["dots"]).rows == (("test", "85 [84, 86]", "86"), ("train", "", "90"))
    assert numbers(CHARTS["heat"]).rows == (("fog", "10", "20"), ("snow", "40", ""))
    assert [row[1] for row in numbers(CHARTS["histogram"]).rows] == ["0.2", "0.5", "0.3"]


@pytest.mark.parametrize("many", [1, GROUPS])
def test_marks_and_dashes_tell_groups_apart_without_colour(many: int) -> None:
    rows = tuple(DotSeries(f"g{i}", i, (Dot(i),)) for i in range(many))
    drawn = draw(Dots("A", "B.", Axis("x"), ("row",), "row", rows), "a")
    marks = re.findall(r'class="dot" d="M[\d.]+ [\d.]+([^"]+)"', drawn)
    assert len(set(marks)) == many
    assert f"0 0 {WIDTH} " in drawn


def test_a_long_name_leaves_room_for_the_chart_and_is_whole_in_its_tip() -> None:
    name = "a.very.long.name." * 5 + "conv1"
    drawn = draw(Dots("A", "B.", Axis("x"), (name,), "layer", (DotSeries("g", 0, (Dot(1, 0, 2),)),)), "a")
    label = re.findall(r'text-anchor="end" class="small">([^<]+)</text>', drawn)
    assert label == ["…" + name[-25:]]
    assert f"<title>g, {name}: 1 [0, 2]</title>" in drawn


# -- colours: contrast as WCAG has it, colour blindness by Machado, Oliveira and Fernandes (2009) -----------------

BLIND = {
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


def _linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _luminance(linear: np.ndarray) -> float:
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _contrast(one: np.ndarray, other: np.ndarray) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_the_paper(colors: dict[str, str]) -> None:
    paper = _linear(colors["paper"])
    assert all(_contrast(_linear(colors[name]), paper) >= 4.5 for name in ("ink", "soft", "link"))
    assert all(_contrast(_linear(colors[f"g{i}"]), paper) >= 3 for i in range(GROUPS))


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["cool", "warm"])
def test_numbers_can_be_read_on_the_darkest_cell(name: str, colors: dict[str, str]) -> None:
    def level(color: str) -> np.ndarray:
        return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])

    mixed = np.rint(SHADE * level(colors[name]) + (1 - SHADE) * level(colors["paper"])).astype(int)
    assert _contrast(_linear("#" + "".join(f"{v:02x}" for v in mixed)), _linear(colors["ink"])) >= 4.5


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colour_blind_tell_groups_apart(colors: dict[str, str], blind: str) -> None:
    seen = [_lab(BLIND[blind] @ _linear(colors[f"g{i}"])) for i in range(GROUPS)]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) >= 11.5
    assert math.dist(seen[0], seen[1]) >= 30  # a pair of groups is what most reports compare
    cool, warm = (_lab(BLIND[blind] @ _linear(colors[name])) for name in ("cool", "warm"))
    assert math.dist(cool, warm) >= 30
