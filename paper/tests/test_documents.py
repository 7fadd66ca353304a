"""The documents of the paper follow their form: claims have verdicts and evidence, log entries have dates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs import find_missing_commands, find_missing_paths, find_missing_tests

DOCUMENTS = Path(__file__).parents[1] / "docs"
# LOG.md is history: it may name files that no longer exist.
CURRENT_DOCUMENTS = [path for path in sorted(DOCUMENTS.glob("*.md")) if path.name != "LOG.md"]
VERDICTS = ("holds", "fails", "not reached under this protocol", "cannot be tested here", "not yet")


@pytest.mark.parametrize("path", CURRENT_DOCUMENTS, ids=lambda path: path.name)
def test_paths_tests_and_commands_in_documents_exist(path: Path) -> None:
    assert find_missing_paths(path) == []
    assert find_missing_tests(path) == []
    assert find_missing_commands(path) == []


def read_claims() -> list[list[str]]:
    lines = (DOCUMENTS / "claims.md").read_text().splitlines()
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
    return [r for r in rows if r[0] != "#" and not set(r[0]) <= set("-: ")]


def test_every_claim_has_a_verdict_and_every_decided_claim_its_evidence() -> None:
    rows = read_claims()
    assert len(rows) > 60
    assert len({r[0] for r in rows}) == len(rows)
    for number, _, _, verdict, evidence in rows:
        assert verdict in VERDICTS, number
        if verdict in ("holds", "fails", "not reached under this protocol"):
            assert any(folder in evidence for folder in ("tests/", "results/", "records/")), number


def test_the_claims_are_counted_correctly() -> None:
    rows = read_claims()
    counts = ", ".join(f"{sum(r[3] == v for r in rows)} with *{v}*" for v in VERDICTS)
    assert f"The table has {len(rows)} rows: {counts}." in (DOCUMENTS / "claims.md").read_text()


def test_log_entries_have_dated_headings() -> None:
    headings = [line for line in (DOCUMENTS / "LOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings
    assert all(re.match(r"## \d{4}-\d{2}-\d{2} · \S", heading) for heading in headings)
