"""The scaling model: fitting a link, reading the load, and predictions that match the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.distributed.scaling import RECORD, compare_with_model, fit_link, read_load
from bench.distributed.scaling_model import Link
from lcrbnn.runs.record import read_record

ROOT = Path(__file__).parents[2]


def test_the_load_is_read_from_the_records() -> None:
    load = read_load("resnet18-double-imagenet")
    assert load.num_parameters == 11_690_536
    assert 1 / load.image_seconds == pytest.approx(14_928, rel=1e-4)
    assert load.num_norms == 21


def test_a_fitted_link_reproduces_the_times_it_was_fitted_to() -> None:
    link = Link(1e9, 2e-4)
    sizes = (1 << 14, 1 << 20, 1 << 24)
    fitted = fit_link({str(size): link.ring_seconds(size, 2) for size in sizes}, 2)
    assert (fitted.bandwidth, fitted.latency) == pytest.approx((link.bandwidth, link.latency))
    bytes_sent = 4 * 269_850
    measured = {
        "sent": {str(size): link.ring_seconds(size, 2) for size in sizes},
        "steps": {"resnet20-double": {"alone": 1.0, "together": 1.0 + link.ring_seconds(bytes_sent, 2)}},
    }
    compared = compare_with_model(measured, fitted, 2)
    assert compared["messages"] == pytest.approx({str(size): 1.0 for size in sizes})
    assert compared["resnet20-double"] == pytest.approx(1.0)


def test_derived_figures_follow_from_the_recorded_times() -> None:
    figures = read_record(RECORD)["figures"]
    link = fit_link(figures["sent"], 2)
    assert (link.bandwidth, link.latency) == pytest.approx((figures["bandwidth"], figures["latency"]))
    assert compare_with_model(figures, link, 2) == figures["predicted_over_measured"]
