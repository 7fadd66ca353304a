"""Power iteration against an SVD, and how far five steps fall short."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.retention.spectral import iterate, random_start, spectral_norm, start_of, value


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_converged_value_is_the_squared_largest_singular_value(rows: int, columns: int, seed: int) -> None:
    g = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got, _ = spectral_norm(g, squared=True, res_stop=1e-9)
    torch.testing.assert_close(got, torch.linalg.matrix_norm(g, 2).square(), rtol=1e-6, atol=1e-12)


def test_a_matrix_given_whole_has_its_largest_eigenvalue() -> None:
    a = torch.randn(6, 6, dtype=torch.float64)
    rm = (a.T @ a)[None]
    got, _ = spectral_norm(rm, squared=False, res_stop=1e-9)
    torch.testing.assert_close(got, torch.linalg.eigvalsh(rm)[:, -1])


def test_the_stop_condition_is_the_distance_of_successive_vectors() -> None:
    g = torch.diag(torch.tensor([2.0, 1.0]))[None]
    counts = [spectral_norm(g, squared=True, res_stop=r)[1] for r in (1e-1, 1e-3, 1e-6)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] < 30
    assert spectral_norm(g, squared=True, res_stop=0.0, max_iterations=7)[1] == 7


def test_the_value_never_exceeds_the_norm_and_grows_with_the_steps() -> None:
    g = torch.randn(20, 40, 40)
    truth = torch.linalg.matrix_norm(g, 2).square()
    last = torch.zeros(20)
    for steps in (1, 2, 5, 20):
        v, before = iterate(g, start_of(random_start(40), 40), steps, squared=True)
        now = value(g, v, before, squared=True)
        assert (now <= truth * (1 + 1e-5)).all()
        assert (now >= last * (1 - 1e-5)).all()
        last = now


def test_five_steps_come_out_a_few_percent_low_on_maps_like_a_networks() -> None:
    # Cross-correlations of a batch of 128 with a common mean and a decaying spectrum: docs/method.md quotes 2 to 10 %.
    generator = torch.Generator().manual_seed(0)
    decay = torch.arange(1, 513).float() ** -0.5
    x = torch.randn(128, 512, generator=generator) * decay
    y = x + torch.randn(128, 512, generator=generator) * decay
    g = (x @ y.T)[None]
    v, before = iterate(g, start_of(random_start(128), 128), 5, squared=True)
    low = 1 - float(value(g, v, before, squared=True) / torch.linalg.matrix_norm(g, 2).square())
    assert 0 <= low < 0.15


def test_a_zero_matrix_has_norm_zero() -> None:
    got, _ = spectral_norm(torch.zeros(1, 4, 4), squared=True)
    assert got.tolist() == [0.0]


def test_the_start_is_seeded_of_unit_length_and_long_enough() -> None:
    assert torch.equal(random_start(50, 3), random_start(50, 3))
    assert not torch.equal(random_start(50, 3), random_start(50, 4))
    for length in (1, 8, 20):
        start = start_of(random_start(8), length)
        assert start.shape == (length,)
        assert float(start.norm()) == pytest.approx(1.0)


def test_one_step_from_ones_is_the_published_codes_value() -> None:
    k = torch.randn(2, 5, 5)
    k = k @ k.mT
    v, before = iterate(k, torch.ones(5), 1, squared=False)
    torch.testing.assert_close(value(k, v, before, squared=False), (k @ torch.ones(2, 5, 1)).norm(dim=(1, 2)))
