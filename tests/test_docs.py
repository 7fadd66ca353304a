"""Documents and code agree: code blocks run, links, paths, tests, modules and make targets exist."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.deploy.export.export_model import explain_unexportable_method
from lcrbnn.nn.methods.method_registry import METHODS
from tools.methods_page import render_methods_page

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE_FOLDERS = ("lcrbnn", "bench", "tools", "paper", "tests")
MAX_LINES_PER_FILE = 400


def read_code_blocks(path: Path, language: str) -> list[str]:
    """Return the fenced code blocks of one language ("" for blocks without a language)."""
    blocks: list[tuple[str, list[str]]] = []
    is_inside = False
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            is_inside = not is_inside
            if is_inside:
                blocks.append((line[3:], []))
        elif is_inside:
            blocks[-1][1].append(line)
    return ["\n".join(lines) + "\n" for name, lines in blocks if name == language]


def test_the_readme_example_brings_the_ratios_closer_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict = {}
    exec(compile(read_code_blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), names)
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch.compile uses deprecated parts of torch
@pytest.mark.parametrize("path", [p for p in DOCUMENTS if read_code_blocks(p, "python")], ids=lambda p: p.name)
def test_python_code_blocks_run(path: Path) -> None:
    names: dict = {}
    for code in read_code_blocks(path, "python")[1 if path.name == "README.md" else 0 :]:
        exec(compile(code, path.name, "exec"), names)
    assert names


@pytest.mark.parametrize("name", ["lcrbnn.nn.convert", "lcrbnn.nn.methods.method_registry"])
def test_docstring_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_folder_tree_in_the_readme_is_complete() -> None:
    tree = next(block for block in read_code_blocks(ROOT / "README.md", "") if block.startswith("lcrbnn/"))
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    hidden = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    assert listed == {p.name for p in (ROOT / "lcrbnn").iterdir()} - hidden
    for name in tree.splitlines()[-1].split():
        assert (ROOT / name).is_dir(), name


def find_missing_paths(document: Path) -> list[str]:
    """Return links and paths in a document that do not exist."""
    text = document.read_text()
    targets = [document.parent / t for t in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", text)]
    targets += [ROOT / t for t in re.findall(r"`((?:lcrbnn|tests|bench|tools|docs|paper)/[\w./-]+?)(?:::\w+)?`", text)]
    return [str(target) for target in targets if not target.exists()]


def find_missing_tests(document: Path) -> list[str]:
    """Return tests that a document cites and that do not exist."""
    cited = re.findall(r"`((?:paper/)?tests/[\w/]+\.py)::(\w+)", document.read_text())
    return [f"{file}::{name}" for file, name in cited if name not in read_function_names(ROOT / file)]


@cache
def read_function_names(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def find_missing_commands(document: Path) -> list[str]:
    """Return modules (python -m) and make targets in a document that do not exist."""
    text = document.read_text()
    modules = set(re.findall(r"python -m ((?:lcrbnn|bench|tools|paper)[\w.]*)", text))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    cited = set(re.findall(r"`make ([\w-]+)`", text))
    cited |= {name for block in read_code_blocks(document, "") for name in re.findall(r"^make ([\w-]+)", block, re.M)}
    return [*(module for module in sorted(modules) if find_spec(module) is None), *sorted(cited - targets)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_paths_tests_and_commands_in_documents_exist(path: Path) -> None:
    assert find_missing_paths(path) == []
    assert find_missing_tests(path) == []
    assert find_missing_commands(path) == []


def test_the_methods_page_is_generated_from_the_registry(tmp_path: Path) -> None:
    page = render_methods_page(explain_unexportable_method)
    assert page == (ROOT / "docs" / "methods.md").read_text(), "the methods have changed; run make docs"
    figure = (ROOT / "docs" / "methods.svg").read_text()
    assert all(f"<!-- {name}: weight" in figure for name in METHODS)
    assert main(["methods", "--curves", str(tmp_path / "methods.svg")]) == 0
    assert (tmp_path / "methods.svg").stat().st_size > 10_000


def test_every_dependency_has_a_reason_in_the_design_document() -> None:
    dependencies = re.search(r"^dependencies = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert dependencies is not None
    design = (ROOT / "docs" / "design.md").read_text()
    for name in re.findall(r'"([\w-]+)', dependencies[1]):
        assert re.search(rf"(\*\*|`){name}(\*\*|`)", design), name


def test_every_exception_to_a_check_has_a_reason() -> None:
    pattern = re.compile(r"# (type: ignore\S*|noqa\S*( \w+)?)|@pytest\.mark\.(slow|skip\w*|xfail)|pytest\.skip\(")
    for path in [p for folder in CODE_FOLDERS for p in (ROOT / folder).rglob("*.py")]:
        if path == Path(__file__):
            continue  # contains the pattern itself
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := pattern.search(line):
                has_reason = re.search(r"#\s*\S+.*\S", line[match.end() :])
                assert has_reason, f"{path.relative_to(ROOT)}:{number} has no reason"


def test_no_file_of_the_package_is_too_long() -> None:
    for path in (ROOT / "lcrbnn").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= MAX_LINES_PER_FILE, path.name
