"""The page in a browser: no errors, no requests, no clipped text, for several widths and both colour schemes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcrbnn.report.render.style import DARK_COLORS, LIGHT_COLORS
from tests.report.chromium import CHROMIUM_PATH, Chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if CHROMIUM_PATH is None:
        if os.environ.get("CI"):
            pytest.fail("tests of the report need Chromium, which is not installed")
        pytest.skip("Chromium is not installed")  # CI has it
    with Chromium() as browser:
        yield browser


def _rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


# Lists text that extends over the edge of its chart by a pixel or more.
FIND_CLIPPED_TEXT = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBBox();
    return box.x < -1 || box.y < -1 || box.x + box.width > width + 1 || box.y + box.height > height + 1;
  }).map(text => svg.querySelector('title').textContent + ': ' + text.textContent);
})"""

# Lists overlapping texts of a chart.
FIND_OVERLAPPING_TEXT = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll(':scope > text')].map(text => [text.textContent, text.getBBox()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    p.x < q.x + q.width && q.x < p.x + p.width && p.y + 3 < q.y + q.height && q.y + 3 < p.y + p.height
  ).map(([b]) => svg.querySelector('title').textContent + ': ' + a + ' and ' + b));
})"""


@pytest.mark.parametrize(
    ("width", "dark", "media"),
    [(360, False, "screen"), (360, True, "screen"), (1280, True, "screen"), (800, True, "print")],
)
def test_the_page_renders_without_errors_or_requests(
    width: int, dark: bool, media: str, browser: Chromium, full_report_folder: Path
) -> None:
    browser.open_page((full_report_folder / "report.html").as_uri(), width, dark=dark, media=media)
    assert browser.list_events("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    requested_urls = [event["request"]["url"] for event in browser.list_events("Network.requestWillBeSent")]
    assert sum(url.startswith("file:") for url in requested_urls) == 1
    assert all(url.startswith(("file:", "data:image/png")) for url in requested_urls)
    assert browser.evaluate("document.title") == "A <b> title"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    colors = DARK_COLORS if dark and media == "screen" else LIGHT_COLORS  # paper is white
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == _rgb(colors["paper"])
    line = "getComputedStyle(document.querySelector('svg .g1 .dot')).fill"
    assert browser.evaluate(line) == _rgb(colors["g1"])
    assert browser.evaluate("[...document.images].every(image => image.complete && image.naturalWidth === 32)") is True
    assert browser.evaluate(
        "[...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().height > 60)"
    )


def test_no_chart_text_is_clipped_or_overlaps(browser: Chromium, full_report_folder: Path) -> None:
    browser.open_page((full_report_folder / "report.html").as_uri(), 360)
    assert browser.evaluate(FIND_CLIPPED_TEXT) == []
    assert browser.evaluate(FIND_OVERLAPPING_TEXT) == []
    smallest = "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    assert browser.evaluate(smallest) >= 9.5  # pixels, on a narrow phone


def test_an_svg_file_follows_the_light_or_dark_theme(browser: Chromium, full_report_folder: Path) -> None:
    chart = next(path for path in sorted((full_report_folder / "report-charts").glob("*.svg")))
    for dark, colors in ((False, LIGHT_COLORS), (True, DARK_COLORS)):
        browser.open_page(chart.as_uri(), 500, dark=dark)
        assert browser.list_events("Log.entryAdded", "Runtime.exceptionThrown") == []
        assert browser.evaluate("getComputedStyle(document.querySelector('.back')).fill") == _rgb(colors["paper"])
        assert browser.evaluate("getComputedStyle(document.querySelector('.g1 .dot')).fill") == _rgb(colors["g1"])
