"""The page and the Markdown: valid, whole in themselves, and safe whatever runs are called."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.report.charts import Hint, Link, Report, Section, Table
from lcrbnn.report.content import gather
from lcrbnn.report.html import page
from lcrbnn.report.markdown import document, safe
from lcrbnn.report.text import address, plain
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.run import train
from tests.report.made import ROOT, SHIFTS, make_records, make_runs

VOID = {"meta", "img", "br", "link", "input", "hr", "col"}


class Checked(HTMLParser):
    """Follows a page; every tag must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        assert "svg" in self.open, f"<{tag}/> is of SVG only"

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without its start"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def checked(full: Path) -> Checked:
    return Checked((full / "report.html").read_text())


def test_the_page_is_valid_where_it_can_be_checked(checked: Checked, full: Path) -> None:
    text = (full / "report.html").read_text()
    assert text.startswith("<!doctype html>\n<html lang=")
    assert [a for a in checked.all("meta") if a.get("name") == "viewport"]
    assert len(checked.all("h1")) == len(checked.all("main")) == 1
    ids = [a["id"] for _, a in checked.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(a["scope"] in ("col", "row") for a in checked.all("th"))
    assert len(checked.all("caption")) == len(checked.all("table")) > 20
    assert len(checked.all("figcaption")) == len(checked.all("figure"))
    assert all(a["alt"] for a in checked.all("img"))
    for named in [a["aria-labelledby"] for _, a in checked.tags if "aria-labelledby" in a]:
        assert set(named.split()) <= set(ids)
    charts = checked.all("svg")
    assert len(charts) >= 20
    assert all(a["role"] == "img" and a["viewbox"] for a in charts)
    assert text.count("</desc>") == len(charts)
    assert all(a["href"][1:] in ids for a in checked.all("a") if a["href"].startswith("#"))


def test_the_page_refers_to_nothing_outside_but_records(checked: Checked, full: Path) -> None:
    outside = [v for _, a in checked.tags for n, v in a.items() if n in ("src", "srcset", "data", "action", "poster")]
    assert all(value.startswith("data:image/png;base64,") for value in outside)
    links = [a["href"] for a in checked.all("a") if not a["href"].startswith("#")]
    assert len(links) > 6
    assert all((full / link).exists() for link in links)
    assert not checked.all("script") + checked.all("link") + checked.all("iframe")
    assert not re.search(r"url\(|@import|https?:", (full / "report.html").read_text())
    policy = next(a["content"] for a in checked.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_the_page_of_all_sections_is_of_reasonable_size(full: Path) -> None:
    assert 100_000 < (full / "report.html").stat().st_size < 400_000


NASTY = '<script>alert(1)</script> & "quotes" | `code` ](x) <!--'


def test_names_of_runs_and_records_inject_nothing(tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs", seeds=2)
    evil = tmp_path / "runs" / "<img src=x onerror=alert(1)>"
    shutil.move(runs[1], evil)
    path = evil / "seed-0.json"
    record = json.loads(path.read_text())
    record["environment"]["gpu"] = NASTY
    record["layers"]["weights"] = {NASTY: {"std": 0.1}}
    path.write_text(json.dumps(record))
    words = ["report", f"{NASTY}={runs[0]}", str(evil), "--data-folder", str(tmp_path)]
    for name in ("a.html", "a.md"):
        assert main([*words, "-o", str(tmp_path / name)]) == 0
    found = Checked((tmp_path / "a.html").read_text())
    assert not found.all("script")
    assert all(a.get("src", "").startswith("data:") and "onerror" not in a for a in found.all("img"))
    assert any(NASTY in text for text in found.text)  # it is shown as it is called
    text = (tmp_path / "a.md").read_text()
    assert not re.search(r"(?<!\\)<", text)
    assert len({line.count(" | ") for line in text.split("**Settings**")[1].strip().split("\n\n")[0].splitlines()}) == 1
    for chart in (tmp_path / "a-charts").glob("*.svg"):
        assert "<script" not in chart.read_text()


def test_a_link_has_no_scheme_and_a_text_no_control_characters() -> None:
    assert address("javascript:alert(1)/a b.json") == "javascript%3Aalert%281%29/a%20b.json"
    assert plain("a\x00b\x1b[0m\udcff\u202ec\nd") == "a\ufffdb\ufffd[0m\ufffd\ufffdc\nd"
    table = Table("t", ("a",), ((Link("x", 'data:"><script>'),),))
    made = page(Report("t", "l", (), (Section("s", (table, Hint("h", "<c>"))),)))
    assert [a["href"] for a in Checked(made).all("a")] == ["#s", "data%3A%22%3E%3Cscript%3E"]


def test_a_report_in_markdown_has_its_charts_beside_it(full: Path) -> None:
    text = (full / "report.md").read_text()
    targets = re.findall(r"!\[(?:\\.|[^\]\\])*\]\(([^)]+)\)", text)
    assert len(targets) == len(set(targets)) >= 20 + 19
    assert all((full / target).stat().st_size > 100 for target in targets)
    assert {path.name for path in (full / "report-charts").iterdir()} == {Path(target).name for target in targets}
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings == re.findall(r"<h2 id=[^>]+>([^<]+)</h2>", (full / "report.html").read_text())
    assert "![A row a corruption; along" not in text
    for line in re.findall(r"^\|.*$", text, re.M):
        assert line.endswith(" |")


def test_both_files_hold_the_same_tables(full: Path) -> None:
    page_text = re.sub(r"<details>.*?</details>", "", (full / "report.html").read_text(), flags=re.S)
    rows = [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tbody>.*?</tbody>", page_text, flags=re.S)
        for row in re.findall(r"<tr>(.*?)</tr>", row)
    ]
    lines = [line for line in (full / "report.md").read_text().splitlines() if line.startswith("| ")]
    body = [line for line in lines if not set(line) <= set("|- ")]
    tables = page_text.count("<table")
    assert len(body) == len(rows) + tables  # with a line of titles each


def test_the_same_records_give_the_same_page(full: Path, tmp_path: Path) -> None:
    runs = [str(full / name) for name in ("none", "lcr")]
    words = ["report", *runs, "--records", str(full / "records"), "--data-folder", str(full / "data")]
    assert main([*words, "--title", "A <b> title", "-o", str(full / "again.html")]) == 0
    assert (full / "again.html").read_bytes() == (full / "report.html").read_bytes()


def test_markdown_means_itself() -> None:
    assert safe("a|b *c* <d>\n# e") == r"a\|b \*c\* \<d\> \# e"
    text, files = document(Report("t", "l", (), (Section("s", (Hint("why", "lcrbnn x"),)),)), "charts")
    assert text == "# t\n\nl\n\n## s\n\n> why lcrbnn x\n"
    assert files == {}


def test_records_in_the_folders_of_runs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(Spec(epochs=1, batch=500), tmp_path / "a" / "seed-0", Options(device="cpu"))
    record = tmp_path / "a" / "seed-0" / "record.json"
    (tmp_path / "b").mkdir()
    shutil.copy(record, tmp_path / "b" / "seed-0.json")
    made = tmp_path / "made"
    runs = [str(tmp_path / "b")]
    monkeypatch.setitem(SHIFTS, "b", 0.0)
    make_records(made, runs, kinds=("analyze",))
    shutil.copy(made / "analyze" / "b" / "seed-0.json", record.with_name("analyze.json"))
    report = gather([str(tmp_path / "a")], [], folder=tmp_path, frost=tmp_path / "frost")
    section = next(one for one in report.sections if one.title == "Lipschitz continuity")
    assert len(section.parts) > 3
    assert report.title == "resnet8-double on digits: a"


def test_the_example_is_what_the_records_give(tmp_path: Path) -> None:
    made = (ROOT / "docs" / "example-report.html").read_text()
    words = re.search(r"^EXAMPLE = (.+?) \\\n\t-o (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert words is not None
    runs, records = words[1].split(" --records ")
    report = gather(
        [f"{name}={ROOT / place}" for name, place in (run.split("=") for run in runs.split())],
        [ROOT / records.split()[0]],
        folder=ROOT / "docs",
        frost=tmp_path / "none",
    )
    assert _without_pictures(page(report)) == _without_pictures(made), "the records have changed: make docs"
    assert len(made) < 400_000


def _without_pictures(text: str) -> str:
    return re.sub(r"base64,[^\"]+", "", text)  # other libraries pack the same pixels otherwise
