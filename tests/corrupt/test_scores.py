from __future__ import annotations

import pytest

from lcrbnn.corrupt.scores import ALEXNET, ALEXNET_CLEAN, MAIN, mean_error, summarize
from lcrbnn.corrupt.table import CORRUPTIONS

# AlexNet's errors by severity, as published for three corruptions.
BY_SEVERITY = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "brightness": (0.4514, 0.48502, 0.54048, 0.62166, 0.7244),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
}


def alexnet() -> dict[str, list[float]]:
    """Its errors in percent: by severity where known, otherwise the mean five times."""
    return {name: [100 * e for e in BY_SEVERITY.get(name, (ALEXNET[name],) * 5)] for name in MAIN}


def test_the_normaliser_is_the_published_one() -> None:
    assert tuple(ALEXNET) == MAIN
    assert ALEXNET_CLEAN == 0.435
    assert sum(ALEXNET.values()) / 15 == pytest.approx(0.78899, abs=1e-5)
    for name, errors in BY_SEVERITY.items():
        assert sum(errors) / 5 == pytest.approx(ALEXNET[name], abs=1e-6)


def test_alexnet_itself_scores_a_hundred() -> None:
    found = summarize(alexnet(), 100 * ALEXNET_CLEAN, 224)
    assert found.mce == pytest.approx(100, abs=1e-3)
    assert found.relative_mce == pytest.approx(100, abs=1e-3)


def test_half_of_alexnets_errors_score_fifty_and_a_flat_network_nothing_relative() -> None:
    half = {name: [e / 2 for e in five] for name, five in alexnet().items()}
    assert summarize(half, 50 * ALEXNET_CLEAN, 224).mce == pytest.approx(50, abs=1e-3)
    assert summarize(half, 50 * ALEXNET_CLEAN, 224).relative_mce == pytest.approx(50, abs=1e-3)
    flat = {name: [30.0] * 5 for name in MAIN}
    assert summarize(flat, 30.0, 224).relative_mce == pytest.approx(0, abs=1e-9)


def test_means_are_over_fifteen_or_nineteen_and_all_severities_or_the_fifth() -> None:
    errors = {name: [0.0, 0.0, 0.0, 0.0, 10.0 if row.main else 48.0] for name, row in CORRUPTIONS.items()}
    found = summarize(errors, 0.0, 32)
    assert found.main == pytest.approx(2.0)
    assert found.all == pytest.approx((15 * 2 + 4 * 9.6) / 19)
    assert found.main_worst == pytest.approx(10.0)
    assert found.all_worst == pytest.approx((15 * 10 + 4 * 48) / 19)


def test_only_imagenet_sizes_have_a_normaliser_and_only_all_corruptions_a_mean() -> None:
    errors = {name: [50.0] * 5 for name in MAIN}
    assert summarize(errors, 10.0, 32).mce is None
    assert summarize(errors, 10.0, 64).relative_mce is None
    assert summarize(errors, 10.0, 224).mce is not None
    assert summarize(errors, 10.0, 224).all is None
    del errors["fog"]
    assert summarize(errors, 10.0, 224).mce is None
    assert mean_error(errors, MAIN) is None
