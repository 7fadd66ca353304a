"""The tables of docs/scaling.md are those of the model, and its prediction is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scaling import RECORD, compare, fit, load_of, tables
from lcrbnn.runs.record import read_record
from lcrbnn.study.scaling import Link

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_document_are_those_of_the_model() -> None:
    assert tables() in (ROOT / "docs" / "scaling.md").read_text()


def test_the_load_is_that_of_the_records() -> None:
    load = load_of("resnet18-double-imagenet")
    assert load.parameters == 11_690_536
    assert 1 / load.image_seconds == pytest.approx(14_928, rel=1e-4)
    assert load.norms == 21


def test_a_link_is_found_again_and_predicts_what_it_was_made_of() -> None:
    link = Link(1e9, 2e-4)
    sizes = (1 << 14, 1 << 20, 1 << 24)
    found = fit({str(size): link.ring(size, 2) for size in sizes}, 2)
    assert (found.bandwidth, found.latency) == pytest.approx((link.bandwidth, link.latency))
    bytes_sent = 4 * 269_850
    seen = {
        "sent": {str(size): link.ring(size, 2) for size in sizes},
        "steps": {"resnet20-double": {"alone": 1.0, "together": 1.0 + link.ring(bytes_sent, 2)}},
    }
    compared = compare(seen, found, 2)
    assert compared["messages"] == pytest.approx({str(size): 1.0 for size in sizes})
    assert compared["resnet20-double"] == pytest.approx(1.0)


def test_the_record_holds_what_its_figures_follow_from() -> None:
    figures = read_record(RECORD)["figures"]
    link = fit(figures["sent"], 2)
    assert (link.bandwidth, link.latency) == pytest.approx((figures["bandwidth"], figures["latency"]))
    assert compare(figures, link, 2) == figures["predicted_over_measured"]
