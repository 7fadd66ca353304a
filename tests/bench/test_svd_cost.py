"""The norms timed by bench/kernels/svd_cost.py are correct, and its record is plausible."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.kernels.svd_cost import make_gram_matrices, norms_by_power_iteration, norms_by_svd
from lcrbnn.runs.record import read_record

RECORD = Path(__file__).parents[2] / "bench" / "records" / "exact-norm-cpu.json"


def test_svd_and_power_iteration_give_the_norms_of_a_batch() -> None:
    matrices = make_gram_matrices()
    assert matrices.shape == (18, 128, 128)
    exact = torch.linalg.eigvalsh(matrices.double())[:, -1].float()
    torch.testing.assert_close(norms_by_svd(matrices), exact, rtol=1e-4, atol=0)
    fractions = norms_by_power_iteration(matrices) / exact
    assert 0.8 < float(fractions.min()) <= float(fractions.max()) < 1 + 1e-4


def test_in_the_record_an_svd_takes_below_a_tenth_of_a_step() -> None:
    figures = read_record(RECORD)["figures"]
    assert figures["power_seconds"] < figures["svd_seconds"] < 0.1 * figures["step_seconds"]
