"""The norms that bench/exact_norm.py times are those of the matrices, and its record has them all."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.exact_norm import by_power, by_svd, matrices
from lcrbnn.runs.record import read_record

RECORD = Path(__file__).parents[2] / "results" / "bench" / "exact-norm-cpu.json"


def test_both_ways_find_the_norm_of_a_batch() -> None:
    given = matrices()
    assert given.shape == (18, 128, 128)
    exact = torch.linalg.eigvalsh(given.double())[:, -1].float()
    torch.testing.assert_close(by_svd(given), exact, rtol=1e-4, atol=0)
    shares = by_power(given) / exact
    assert 0.8 < float(shares.min()) <= float(shares.max()) < 1 + 1e-4


def test_the_record_has_the_share_of_a_step_that_an_svd_takes() -> None:
    figures = read_record(RECORD)["figures"]
    assert figures["power_seconds"] < figures["svd_seconds"] < 0.1 * figures["step_seconds"]


def test_the_claims_have_the_times_of_a_gpu() -> None:
    root = RECORD.parents[2]
    found = read_record(RECORD.with_name("exact-norm-h200.json"))["figures"]
    step = read_record(RECORD.with_name("gpu-steps-resnet20.json"))["figures"]["ms_per_step"]
    svd, power = (1000 * found[f"{name}_seconds"] for name in ("svd", "power"))
    claims, log = ((root / "docs" / name).read_text() for name in ("claims.md", "LOG.md"))
    assert f"{svd:.0f} ms on an H200, five steps of power iteration {power:.1f}" in claims
    assert f"a compiled step takes {step:.1f} ms without retention" in claims
    assert f"takes {svd:.1f} ms where five steps of power iteration take {power:.1f}" in log
