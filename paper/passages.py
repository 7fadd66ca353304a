"""Compare the figures in documents with those in the records, and name each passage that is out of date.

The functions in paper/figures yield passages. A passage is the path of a document and a text with figures. There are
three kinds:

- A text that begins with `|` is a row of a table. The document must contain it. `…` in it matches anything in the line.
- Any other text gives figures only. In a Markdown document, a pair of marks encloses the passage:
  `<!-- figures: NAME -->about 3 points<!-- end: NAME -->`. Between the marks the same figures must occur in the same
  order. The words around the figures are free. NAME is MODULE.FUNCTION.INDEX.
- A document that is not Markdown (the header of a recipe) has no marks and must contain the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from paper.figures import Passage

ROOT = Path(__file__).parents[1]
MODULES = (
    "analysis",
    "benchmarks",
    "corruptions",
    "evidence",
    "log_entries",
    "product_documents",
    "resnet18_settings",
    "screening_of_variants",
    "small_studies",
    "tiny_imagenet",
)
FIGURE = re.compile(r"(?<![\w.])[+−-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?![\w])")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class NamedPassage(NamedTuple):
    """A passage of a document, with its name."""

    name: str
    document: str  # path of the document, relative to the root of the repository
    text: str

    @property
    def is_row(self) -> bool:
        """Return whether the passage is a row of a table."""
        return self.text.startswith("|")

    @property
    def has_marks(self) -> bool:
        """Return whether marks enclose the passage in its document.

        Rows and documents that are not Markdown have no marks.
        """
        return not self.is_row and self.document.endswith(".md")


def collect_passages() -> list[NamedPassage]:
    """Return all passages that the functions in paper/figures yield, with their names."""
    passages = []
    for module in MODULES:
        functions: list[Callable[[], Iterator[Passage]]] = import_module(f"paper.figures.{module}").PASSAGES
        for function in functions:
            for index, (document, text) in enumerate(function()):
                passages.append(NamedPassage(f"{module}.{function.__name__}.{index}", document, text.strip("\n")))
    return passages


def read_documents(passages: Sequence[NamedPassage]) -> dict[str, str]:
    """Return the texts of all documents with passages or marks, by path relative to the root."""
    documents = {passage.document for passage in passages} | {"README.md"}
    documents |= {str(p.relative_to(ROOT)) for folder in ("docs", "paper/docs") for p in (ROOT / folder).glob("*.md")}
    return {document: (ROOT / document).read_text(encoding="utf-8") for document in sorted(documents)}


def find_stale_passages(passages: Sequence[NamedPassage], texts: Mapping[str, str]) -> list[str]:
    """Return one sentence per passage whose figures are missing or different in its document, and per unknown mark."""
    problems = [problem for p in passages if (problem := describe_problem(p, texts[p.document]))]
    marked = {(passage.document, passage.name) for passage in passages if passage.has_marks}
    for document, text in texts.items():
        names = dict.fromkeys(re.findall(r"<!-- (?:figures|end): (\w+\.\w+\.\d+) -->", text))
        unknown_names = [name for name in names if (document, name) not in marked]
        problems += [f"{document}: {name}: no function in paper/figures yields this passage" for name in unknown_names]
    return problems


def describe_problem(passage: NamedPassage, text: str) -> str:
    """Return what is wrong with the passage in its document's text. If nothing is wrong, return an empty string."""
    where = f"{passage.document}: {passage.name}"
    if passage.is_row:
        return "" if has_row(text, passage.text) else f"{where}: the document has no row {passage.text}"
    if not passage.has_marks:
        return "" if passage.text in text else f"{where}: the document does not contain {passage.text!r}"
    marked_texts = find_marked_texts(text, passage.name)
    if not marked_texts:
        return f"{where}: the document has no marks of this passage; its figures are those in {passage.text!r}"
    expected = find_figures(passage.text)
    if not expected:
        return f"{where}: the passage has no figures"
    for marked_text in marked_texts:
        actual = find_figures(marked_text)
        if expected != actual:
            return f"{where}: the records give {' '.join(expected)}; the document has {' '.join(actual)}"
    return ""


def has_row(text: str, row: str) -> bool:
    """Return whether a line of the text contains the row."""
    text = COMMENT.sub("", text)
    if "…" not in row:
        return row in text
    pattern = re.compile(".*".join(re.escape(part) for part in row.split("…")))
    return any(pattern.match(line.strip()) for line in text.splitlines())


def find_marked_texts(text: str, name: str) -> list[str]:
    """Return the texts between the marks of a passage."""
    marks = rf"<!-- figures: {re.escape(name)} -->(.*?)<!-- end: {re.escape(name)} -->"
    return re.findall(marks, text, re.DOTALL)


def find_figures(text: str) -> list[str]:
    """Return the numbers in a text. Numbers inside of marks are ignored."""
    return FIGURE.findall(COMMENT.sub("", text))


def update_figures(text: str, passage: NamedPassage) -> str:
    """Return the text of a document in which the figures of a marked passage are replaced by those of the records."""
    expected = find_figures(passage.text)
    for marked_text in find_marked_texts(text, passage.name):
        if len(find_figures(marked_text)) == len(expected):
            figures = iter(expected)
            updated = "".join(
                part if part.startswith("<!--") else FIGURE.sub(lambda _: next(figures), part)  # noqa: B023  # used at once
                for part in re.split(r"(<!--.*?-->)", marked_text, flags=re.DOTALL)
            )
            start, end = f"<!-- figures: {passage.name} -->", f"<!-- end: {passage.name} -->"
            text = text.replace(start + marked_text + end, start + updated + end)
    return text
