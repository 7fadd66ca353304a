"""HTML and Markdown reports: valid, self-contained, and safe for any run name."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.report.build_report import build_report
from lcrbnn.report.elements import CommandHint, Link, Report, Section, Table
from lcrbnn.report.render.html import render_html
from lcrbnn.report.render.markdown import escape_markdown, render_markdown
from lcrbnn.report.render.text import escape_controls, make_link
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train
from tests.report.sample_records import GROUP_SHIFTS, ROOT, copy_records, make_measurement_records

VOID_TAGS = {"meta", "img", "br", "link", "input", "hr", "col"}


class HtmlChecker(HTMLParser):
    """Parse a page and assert that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open_tags, self.open_tags

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        assert "svg" in self.open_tags, f"<{tag}/> is allowed in SVG only"

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags, f"</{tag}> has no start tag"
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def find_all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(full_report_folder: Path) -> HtmlChecker:
    return HtmlChecker((full_report_folder / "report.html").read_text())


def test_the_page_is_valid_and_accessible_html(page: HtmlChecker, full_report_folder: Path) -> None:
    text = (full_report_folder / "report.html").read_text()
    assert text.startswith("<!doctype html>\n<html lang=")
    assert [a for a in page.find_all("meta") if a.get("name") == "viewport"]
    assert len(page.find_all("h1")) == len(page.find_all("main")) == 1
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(a["scope"] in ("col", "row") for a in page.find_all("th"))
    assert len(page.find_all("caption")) == len(page.find_all("table")) > 20
    assert len(page.find_all("figcaption")) == len(page.find_all("figure"))
    assert all(a["alt"] for a in page.find_all("img"))
    for named in [a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a]:
        assert set(named.split()) <= set(ids)
    charts = page.find_all("svg")
    assert len(charts) >= 20
    assert all(a["role"] == "img" and a["viewbox"] for a in charts)
    assert text.count("</desc>") == len(charts)
    assert all(a["href"][1:] in ids for a in page.find_all("a") if a["href"].startswith("#"))


def test_the_page_links_only_to_record_files(page: HtmlChecker, full_report_folder: Path) -> None:
    embedded = [v for _, a in page.tags for n, v in a.items() if n in ("src", "srcset", "data", "action", "poster")]
    assert all(value.startswith("data:image/png;base64,") for value in embedded)
    links = [a["href"] for a in page.find_all("a") if not a["href"].startswith("#")]
    assert len(links) > 6
    assert all((full_report_folder / link).exists() for link in links)
    assert not page.find_all("script") + page.find_all("link") + page.find_all("iframe")
    assert not re.search(r"url\(|@import|https?:", (full_report_folder / "report.html").read_text())
    policy = next(a["content"] for a in page.find_all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_the_page_with_all_sections_is_below_400_kB(full_report_folder: Path) -> None:
    assert 100_000 < (full_report_folder / "report.html").stat().st_size < 400_000


MARKUP_NAME = '<script>alert(1)</script> & "quotes" | `code` ](x) <!--'


def test_markup_in_names_is_escaped(tmp_path: Path) -> None:
    runs = copy_records(tmp_path / "runs", seeds=2)
    renamed_run = tmp_path / "runs" / "<img src=x onerror=alert(1)>"
    shutil.move(runs[1], renamed_run)
    path = renamed_run / "seed-0.json"
    record = json.loads(path.read_text())
    record["environment"]["gpu"] = MARKUP_NAME
    record["layers"]["weights"] = {MARKUP_NAME: {"std": 0.1}}
    path.write_text(json.dumps(record))
    arguments = ["report", f"{MARKUP_NAME}={runs[0]}", str(renamed_run), "--data-folder", str(tmp_path)]
    for name in ("a.html", "a.md"):
        assert main([*arguments, "-o", str(tmp_path / name)]) == 0
    html = HtmlChecker((tmp_path / "a.html").read_text())
    assert not html.find_all("script")
    assert all(a.get("src", "").startswith("data:") and "onerror" not in a for a in html.find_all("img"))
    assert any(MARKUP_NAME in text for text in html.text)  # the name is shown unchanged
    text = (tmp_path / "a.md").read_text()
    assert not re.search(r"(?<!\\)<", text)
    assert len({line.count(" | ") for line in text.split("**Settings**")[1].strip().split("\n\n")[0].splitlines()}) == 1
    for chart in (tmp_path / "a-charts").glob("*.svg"):
        assert "<script" not in chart.read_text()


def test_links_have_no_scheme_and_text_no_control_characters() -> None:
    assert make_link("javascript:alert(1)/a b.json") == "javascript%3Aalert%281%29/a%20b.json"
    assert escape_controls("a\x00b\x1b[0m\udcff\u202ec\nd") == "a\ufffdb\ufffd[0m\ufffd\ufffdc\nd"
    table = Table("t", ("a",), ((Link("x", 'data:"><script>'),),))
    html = render_html(Report("t", "l", (), (Section("s", (table, CommandHint("h", "<c>"))),)))
    assert [a["href"] for a in HtmlChecker(html).find_all("a")] == ["#s", "data%3A%22%3E%3Cscript%3E"]


def test_a_markdown_report_has_its_charts_in_a_folder(full_report_folder: Path) -> None:
    text = (full_report_folder / "report.md").read_text()
    targets = re.findall(r"!\[(?:\\.|[^\]\\])*\]\(([^)]+)\)", text)
    assert len(targets) == len(set(targets)) >= 20 + 19
    assert all((full_report_folder / target).stat().st_size > 100 for target in targets)
    assert {path.name for path in (full_report_folder / "report-charts").iterdir()} == {
        Path(target).name for target in targets
    }
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings == re.findall(r"<h2 id=[^>]+>([^<]+)</h2>", (full_report_folder / "report.html").read_text())
    assert "![One row per" not in text  # the description of a chart comes before its axes
    for line in re.findall(r"^\|.*$", text, re.M):
        assert line.endswith(" |")


def test_html_and_markdown_have_the_same_tables(full_report_folder: Path) -> None:
    page_text = re.sub(r"<details>.*?</details>", "", (full_report_folder / "report.html").read_text(), flags=re.S)
    rows = [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tbody>.*?</tbody>", page_text, flags=re.S)
        for row in re.findall(r"<tr>(.*?)</tr>", row)
    ]
    lines = [line for line in (full_report_folder / "report.md").read_text().splitlines() if line.startswith("| ")]
    body = [line for line in lines if not set(line) <= set("|- ")]
    tables = page_text.count("<table")
    assert len(body) == len(rows) + tables  # one header line per table


def test_the_same_records_give_the_same_page(full_report_folder: Path, tmp_path: Path) -> None:
    runs = [str(full_report_folder / name) for name in ("none", "lcr")]
    arguments = [
        "report",
        *runs,
        "--records",
        str(full_report_folder / "records"),
        "--data-folder",
        str(full_report_folder / "data"),
    ]
    assert main([*arguments, "--title", "A <b> title", "-o", str(full_report_folder / "again.html")]) == 0
    assert (full_report_folder / "again.html").read_bytes() == (full_report_folder / "report.html").read_bytes()


def test_markdown_is_escaped() -> None:
    assert escape_markdown("a|b *c* <d>\n# e") == r"a\|b \*c\* \<d\> \# e"
    text, files = render_markdown(Report("t", "l", (), (Section("s", (CommandHint("why", "lcrbnn x"),)),)), "charts")
    assert text == "# t\n\nl\n\n## s\n\n> why lcrbnn x\n"
    assert files == {}


def test_records_in_run_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(TrainSpec(epochs=1, batch_size=500), tmp_path / "a" / "seed-0", RunOptions(device="cpu"))
    record = tmp_path / "a" / "seed-0" / "record.json"
    (tmp_path / "b").mkdir()
    shutil.copy(record, tmp_path / "b" / "seed-0.json")
    records = tmp_path / "made"
    runs = [str(tmp_path / "b")]
    monkeypatch.setitem(GROUP_SHIFTS, "b", 0.0)
    make_measurement_records(records, runs, kinds=("analyze",))
    shutil.copy(records / "analyze" / "b" / "seed-0.json", record.with_name("analyze.json"))
    report = build_report([str(tmp_path / "a")], [], report_folder=tmp_path, frost_folder=tmp_path / "frost")
    section = next(candidate for candidate in report.sections if candidate.title == "Lipschitz continuity")
    assert len(section.elements) > 3
    assert report.title == "resnet8-double on digits: a"


def test_the_committed_example_report_is_current(tmp_path: Path) -> None:
    committed = (ROOT / "docs" / "example-report.html").read_text()
    example = re.search(r"^EXAMPLE = (.+?) \\\n\t-o (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert example is not None
    runs, records = example[1].split(" --records ")
    report = build_report(
        [f"{name}={ROOT / path}" for name, path in (run.split("=") for run in runs.split())],
        [ROOT / records.split()[0]],
        report_folder=ROOT / "docs",
        frost_folder=tmp_path / "none",
    )
    assert _remove_image_data(render_html(report)) == _remove_image_data(committed), (
        "the records or the report have changed; run make docs"
    )
    assert len(committed) < 400_000


def _remove_image_data(text: str) -> str:
    return re.sub(r"base64,[^\"]+", "", text)  # compression differs between library versions
