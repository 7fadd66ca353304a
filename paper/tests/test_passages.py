"""The check of documents names each figure, row, mark and section that differs from the records."""

from __future__ import annotations

import pytest

import paper.__main__ as command
from paper import passages
from paper.passages import NamedPassage, find_stale_passages, update_figures
from paper.tables import render_tables
from paper.tables.render_tables import compare_sections

GAIN = NamedPassage("study.gain.0", "page.md", "+1.36 [+0.77, +1.95], five pairs of 2")
ROW = NamedPassage("study.rows.0", "page.md", "| IR-Net |…| 85.28 |")
HEADER = NamedPassage("study.header.0", "recipe.toml", "Here: 85.28 %")
START, END = "<!-- figures: study.gain.0 -->", "<!-- end: study.gain.0 -->"
PAGE = f"The gain is {START}+1.36 points [+0.77,\n+1.95] in 2 studies{END}.\n\n| IR-Net | 1/1 | 85.28 |\n"
RECIPE = "# Here: 85.28 % (last epoch)\n"


def find_problems(page: str = PAGE, recipe: str = RECIPE) -> list[str]:
    return find_stale_passages([GAIN, ROW, HEADER], {"page.md": page, "recipe.toml": recipe})


def test_a_page_with_the_figures_of_the_records_is_up_to_date() -> None:
    assert find_problems() == []
    assert find_problems(PAGE.replace("in 2 studies", "in all 2 of our studies")) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("+1.36", "+1.37", "page.md: study.gain.0: the records give +1.36 +0.77 +1.95 2; the document has +1.37 "),
        ("+1.36", "−1.36", "page.md: study.gain.0: the records give +1.36 "),
        ("+1.36 points", "a gain", "page.md: study.gain.0: the records give +1.36 "),
        (START, "", "page.md: study.gain.0: the document has no marks of this passage"),
        ("85.28 |", "85.29 |", "page.md: study.rows.0: the document has no row | IR-Net |…| 85.28 |"),
        ("| IR-Net", "IR-Net", "page.md: study.rows.0: the document has no row "),
        ("IR-Net |", "IR-Net <!-- figures: study.gain.1 -->|", "page.md: study.gain.1: no function in paper/figures "),
    ],
)
def test_a_changed_page_is_named(old: str, new: str, problem: str) -> None:
    (sentence,) = [s for s in find_problems(PAGE.replace(old, new)) if not s.startswith("page.md: study.gain.0: no f")]
    assert sentence.startswith(problem)


def test_a_second_copy_of_a_passage_is_checked_too() -> None:
    (sentence,) = find_problems(PAGE + f"Again {START}+1.3{END}.")
    assert sentence.startswith("page.md: study.gain.0: the records give ")


def test_a_changed_header_is_named() -> None:
    assert find_problems(recipe="# Here: 85.29 %\n") == [
        "recipe.toml: study.header.0: the document does not contain 'Here: 85.28 %'"
    ]


def test_a_marked_passage_needs_figures() -> None:
    passage = NamedPassage("study.gain.0", "page.md", "no figure")
    page = f"{START}none{END}"
    assert find_stale_passages([passage], {"page.md": page}) == ["page.md: study.gain.0: the passage has no figures"]


def test_update_writes_the_figures_and_keeps_the_words() -> None:
    stale_page = PAGE.replace("+1.36", "+9.99").replace("+1.95]", "<!-- 7 -->+1.9]")
    assert update_figures(stale_page, GAIN) == PAGE.replace("+1.95]", "<!-- 7 -->+1.95]")
    other_words = PAGE.replace("+1.36", "a gain")  # another number of figures: a person has to edit the sentence
    assert update_figures(other_words, GAIN) == other_words


def test_a_changed_section_is_named() -> None:
    results = "# Results\n\n## A\n\n| 1 |\n\n## B\n\n| 2 |\n"
    assert compare_sections(results, results) == []
    assert compare_sections(results, results.replace("2", "3")) == [
        "paper/docs/results.md: the section 'B' is out of date"
    ]
    assert len(compare_sections(results, results.replace("## B", "## C"))) == 2
    assert compare_sections(results, results.replace("Results", "All")) == [
        "paper/docs/results.md: the section 'introduction' is out of date"
    ]


@pytest.mark.parametrize(
    "page", [PAGE, PAGE.replace("+1.36", "+1.37"), PAGE.replace(START, ""), PAGE.replace("85", "8")]
)
def test_the_command_fails_if_a_passage_is_stale(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(passages, "collect_passages", lambda: [GAIN, ROW])
    monkeypatch.setattr(passages, "read_documents", lambda all_passages: {"page.md": page})
    monkeypatch.setattr(render_tables, "find_stale_tables", list)
    assert command.check_documents() == (page != PAGE)
    assert ("page.md: study." in capsys.readouterr().out) == (page != PAGE)
