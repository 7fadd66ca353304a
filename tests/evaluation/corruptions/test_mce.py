from __future__ import annotations

import pytest

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.evaluation.robustness.mce import (
    ALEXNET_CLEAN_ERROR,
    ALEXNET_ERRORS,
    MAIN_CORRUPTIONS,
    compute_mean_error,
    summarize_errors,
)

# Published errors of AlexNet by severity, for three corruptions.
ALEXNET_BY_SEVERITY = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "brightness": (0.4514, 0.48502, 0.54048, 0.62166, 0.7244),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
}


def alexnet_errors() -> dict[str, list[float]]:
    """Return the errors of AlexNet in percent, with the mean at all severities if those by severity are not known."""
    return {
        name: [100 * e for e in ALEXNET_BY_SEVERITY.get(name, (ALEXNET_ERRORS[name],) * 5)] for name in MAIN_CORRUPTIONS
    }


def test_alexnet_errors_are_the_published_ones() -> None:
    assert tuple(ALEXNET_ERRORS) == MAIN_CORRUPTIONS
    assert ALEXNET_CLEAN_ERROR == 0.435
    assert sum(ALEXNET_ERRORS.values()) / 15 == pytest.approx(0.78899, abs=1e-5)
    for name, errors in ALEXNET_BY_SEVERITY.items():
        assert sum(errors) / 5 == pytest.approx(ALEXNET_ERRORS[name], abs=1e-6)


def test_alexnet_has_mce_100() -> None:
    summary = summarize_errors(alexnet_errors(), 100 * ALEXNET_CLEAN_ERROR, 224)
    assert summary.mce == pytest.approx(100, abs=1e-3)
    assert summary.relative_mce == pytest.approx(100, abs=1e-3)


def test_half_of_alexnets_errors_give_mce_50_and_constant_errors_relative_mce_0() -> None:
    half_errors = {name: [e / 2 for e in by_severity] for name, by_severity in alexnet_errors().items()}
    assert summarize_errors(half_errors, 50 * ALEXNET_CLEAN_ERROR, 224).mce == pytest.approx(50, abs=1e-3)
    assert summarize_errors(half_errors, 50 * ALEXNET_CLEAN_ERROR, 224).relative_mce == pytest.approx(50, abs=1e-3)
    constant_errors = {name: [30.0] * 5 for name in MAIN_CORRUPTIONS}
    assert summarize_errors(constant_errors, 30.0, 224).relative_mce == pytest.approx(0, abs=1e-9)


def test_means_cover_15_or_19_corruptions_and_all_severities_or_only_the_fifth() -> None:
    errors = {name: [0.0, 0.0, 0.0, 0.0, 10.0 if row.is_main else 48.0] for name, row in CORRUPTIONS.items()}
    summary = summarize_errors(errors, 0.0, 32)
    assert summary.main == pytest.approx(2.0)
    assert summary.all == pytest.approx((15 * 2 + 4 * 9.6) / 19)
    assert summary.main_worst == pytest.approx(10.0)
    assert summary.all_worst == pytest.approx((15 * 10 + 4 * 48) / 19)


def test_missing_corruptions_or_other_image_sizes_give_no_mce() -> None:
    errors = {name: [50.0] * 5 for name in MAIN_CORRUPTIONS}
    assert summarize_errors(errors, 10.0, 32).mce is None
    assert summarize_errors(errors, 10.0, 64).relative_mce is None
    assert summarize_errors(errors, 10.0, 224).mce is not None
    assert summarize_errors(errors, 10.0, 224).all is None
    del errors["fog"]
    assert summarize_errors(errors, 10.0, 224).mce is None
    assert compute_mean_error(errors, MAIN_CORRUPTIONS) is None
