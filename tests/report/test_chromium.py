"""The page in a browser: it renders without a complaint or a request, at every width and in every light."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcrbnn.report.style import DARK, LIGHT
from tests.report.chromium import PROGRAM, Chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if PROGRAM is None:
        if os.environ.get("CI"):
            pytest.fail("the report is tested in Chromium, which is not installed")
        pytest.skip("Chromium is not installed")  # CI has it
    with Chromium() as browser:
        yield browser


def _rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


# Text of a chart that reaches over its edge, by a pixel or more.
CLIPPED = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBBox();
    return box.x < -1 || box.y < -1 || box.x + box.width > width + 1 || box.y + box.height > height + 1;
  }).map(text => svg.querySelector('title').textContent + ': ' + text.textContent);
})"""

# Numbers along the axis of a chart that run into each other.
TOUCHING = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll(':scope > text')].map(text => [text.textContent, text.getBBox()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    p.x < q.x + q.width && q.x < p.x + p.width && p.y + 3 < q.y + q.height && q.y + 3 < p.y + p.height
  ).map(([b]) => svg.querySelector('title').textContent + ': ' + a + ' and ' + b));
})"""


@pytest.mark.parametrize(
    ("width", "dark", "media"),
    [(360, False, "screen"), (360, True, "screen"), (1280, True, "screen"), (800, True, "print")],
)
def test_the_page_renders_quietly(width: int, dark: bool, media: str, browser: Chromium, full: Path) -> None:
    browser.show((full / "report.html").as_uri(), width, dark=dark, media=media)
    assert browser.told("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    asked = [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")]
    assert sum(url.startswith("file:") for url in asked) == 1
    assert all(url.startswith(("file:", "data:image/png")) for url in asked)
    assert browser.value("document.title") == "A <b> title"
    assert browser.value("document.documentElement.scrollWidth") <= width
    colors = DARK if dark and media == "screen" else LIGHT  # paper is white
    assert browser.value("getComputedStyle(document.body).backgroundColor") == _rgb(colors["paper"])
    line = "getComputedStyle(document.querySelector('svg .g1 .dot')).fill"
    assert browser.value(line) == _rgb(colors["g1"])
    assert browser.value("[...document.images].every(image => image.complete && image.naturalWidth === 32)") is True
    assert browser.value("[...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().height > 60)")


def test_no_text_of_a_chart_is_cut_off_or_runs_into_another(browser: Chromium, full: Path) -> None:
    browser.show((full / "report.html").as_uri(), 360)
    assert browser.value(CLIPPED) == []
    assert browser.value(TOUCHING) == []
    smallest = "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    assert browser.value(smallest) >= 9.5  # pixels, on a narrow phone


def test_a_chart_in_a_file_of_its_own_has_its_colours(browser: Chromium, full: Path) -> None:
    chart = next(path for path in sorted((full / "report-charts").glob("*.svg")))
    for dark, colors in ((False, LIGHT), (True, DARK)):
        browser.show(chart.as_uri(), 500, dark=dark)
        assert browser.told("Log.entryAdded", "Runtime.exceptionThrown") == []
        assert browser.value("getComputedStyle(document.querySelector('.back')).fill") == _rgb(colors["paper"])
        assert browser.value("getComputedStyle(document.querySelector('.g1 .dot')).fill") == _rgb(colors["g1"])
