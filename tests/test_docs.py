"""The documents tell the truth: their code runs, their paths exist, their figures are what the code draws."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.methods import METHODS

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VERDICTS = ("holds", "fails", "cannot be tested here", "not yet")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language ("" for none)."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append((line[3:], []))
        elif inside:
            found[-1][1].append(line)
    return ["\n".join(lines) + "\n" for name, lines in found if name == language]


def test_the_readme_example_runs_and_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict = {}
    exec(compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), names)
    before, after = (
        [abs(float(x) - 1) for x in line.split("[")[1].strip("]").split(",")]
        for line in capsys.readouterr().out.splitlines()
    )
    assert all(a < b for a, b in zip(after, before, strict=True))
    assert sum(after) < 0.6 * sum(before)
    assert float(names["loss"].detach()) > 0
    for i in (3, 4):
        assert names["model"][i].conv.weight.grad.abs().sum() > 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in names["model"].modules())


@pytest.mark.parametrize("path", [p for p in DOCS if blocks(p, "python")], ids=lambda p: p.name)
def test_every_other_example_runs(path: Path) -> None:
    names: dict = {}
    for code in blocks(path, "python")[1 if path.name == "README.md" else 0 :]:
        exec(compile(code, path.name, "exec"), names)
    assert names


@pytest.mark.parametrize("name", ["lcrbnn.convert", "lcrbnn.methods.table"])
def test_examples_in_docstrings_hold(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 0
    assert done.failed == 0


def test_the_readme_opens_with_the_two_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = next(b for b in blocks(ROOT / "README.md", "") if b.startswith("lcrbnn/"))
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    hidden = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    assert listed == {p.name for p in (ROOT / "lcrbnn").iterdir()} - hidden
    for name in tree.splitlines()[-1].split():
        assert (ROOT / name).is_dir(), name


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_links_and_paths_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    targets = [path.parent / t for t in re.findall(r"\]\(([^)#:]+)\)", text)]
    targets += [
        ROOT / t for t in re.findall(r"`((?:lcrbnn|tests|bench|tools|docs|results)/[\w./-]+?)(?:::\w+)?`", text)
    ]
    missing = [str(t) for t in targets if not t.exists()]
    assert not missing


def claims() -> list[list[str]]:
    lines = (ROOT / "docs" / "claims.md").read_text().splitlines()
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
    return [r for r in rows if r[0] != "#" and not set(r[0]) <= set("-: ")]


def test_every_claim_has_a_verdict_and_every_decided_one_a_witness() -> None:
    rows = claims()
    assert len(rows) > 60
    assert len({r[0] for r in rows}) == len(rows)
    for number, _, _, verdict, shown in rows:
        assert verdict in VERDICTS, number
        if verdict in ("holds", "fails"):
            assert "tests/" in shown or "results/" in shown, number


def test_the_claims_are_counted_right() -> None:
    rows = claims()
    counts = ", ".join(f"{v} {sum(r[3] == v for r in rows)}" for v in VERDICTS)
    assert f"Rows: {len(rows)} — {counts}." in (ROOT / "docs" / "claims.md").read_text()


def test_every_cited_test_exists() -> None:
    for path in DOCS:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)", path.read_text()):
            functions = {
                n.name for n in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(n, ast.FunctionDef)
            }
            assert name in functions, f"{path.name}: {file}::{name}"


def test_the_page_about_methods_is_made_from_the_table(tmp_path: Path) -> None:
    assert main(["methods", "--page", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "methods.md").read_text()
    drawn = (ROOT / "docs" / "methods.svg").read_text()
    assert all(f"<!-- {name}: weight" in drawn for name in METHODS)


def test_an_entry_says_all_that_its_classes_say() -> None:
    entries = dict(part.split("\n", 1) for part in (ROOT / "docs" / "methods.md").read_text().split("\n## ")[1:])
    for name in ("sq-bwn", "sq-twn"):
        assert "drawn by roulette" in entries[name]
        assert "four quarters of one" in entries[name]
    assert "s tanh(k x)" in entries["dsq"]
    assert "Only unofficial code exists" in entries["dsq"]


def test_the_log_has_a_dated_heading_an_entry() -> None:
    headings = [line for line in (ROOT / "docs" / "LOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings
    assert all(re.match(r"## \d{4}-\d{2}-\d{2} · \S", h) for h in headings)


def test_every_dependency_is_argued_for() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.search(r"^dependencies = \[(.*?)\]", project, re.MULTILINE)
    assert wanted is not None
    for name in re.findall(r'"([\w-]+)', wanted.group(1)):
        assert f"**{name}**" in (ROOT / "docs" / "design.md").read_text(), name


def test_every_exception_to_a_check_has_a_reason_beside_it() -> None:
    pattern = re.compile(r"# (type: ignore\S*|noqa\S*( \w+)?)|@pytest\.mark\.(slow|skip\w*|xfail)|pytest\.skip\(")
    for path in [p for folder in ("lcrbnn", "tests", "bench", "tools") for p in (ROOT / folder).rglob("*.py")]:
        if path == Path(__file__):
            continue  # this pattern itself
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := pattern.search(line):
                assert re.search(r"#\s*\S+.*\S", line[match.end() :]), (
                    f"{path.relative_to(ROOT)}:{number} says no reason"
                )


def test_no_file_is_longer_than_it_should_be() -> None:
    for path in (ROOT / "lcrbnn").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name


def test_every_module_opens_with_the_sentence_that_defines_it_and_public_names_are_documented() -> None:
    for path in (ROOT / "lcrbnn").rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path.name
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"
