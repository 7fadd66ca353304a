"""Power iteration compared with an SVD, and the error of five steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.lcr.spectral_norm import (
    draw_start_vector,
    pick_longest_column,
    power_iterate,
    rayleigh_value,
    slice_start_vector,
    spectral_norm,
)


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_converged_value_is_the_squared_largest_singular_value(rows: int, columns: int, seed: int) -> None:
    g = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got, _ = spectral_norm(g, squared=True, res_stop=1e-9)
    torch.testing.assert_close(got, torch.linalg.matrix_norm(g, 2).square(), rtol=1e-6, atol=1e-12)


def test_value_of_a_full_matrix_is_its_largest_eigenvalue() -> None:
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
    expected = torch.linalg.matrix_norm(g, 2).square()
    last_value = torch.zeros(20)
    for steps in (1, 2, 5, 20):
        v, before = power_iterate(g, slice_start_vector(draw_start_vector(40), 40), steps, squared=True)
        value = rayleigh_value(g, v, before, squared=True)
        assert (value <= expected * (1 + 1e-5)).all()
        assert (value >= last_value * (1 - 1e-5)).all()
        last_value = value


def test_five_steps_are_too_low_if_the_top_eigenvalues_are_close() -> None:
    # A Wishart matrix: the correlations of 128 independent maps, like those of an untrained network (docs/method.md).
    x = torch.randn(128, 512, generator=torch.Generator().manual_seed(0))
    rm = (x @ x.T)[None]
    v, before = power_iterate(rm, slice_start_vector(draw_start_vector(128), 128), 5, squared=False)
    relative_error = 1 - float(rayleigh_value(rm, v, before, squared=False) / torch.linalg.matrix_norm(rm, 2))
    assert 0.05 < relative_error < 0.4


def test_longest_column_finds_a_direction_that_a_random_start_misses() -> None:
    # One dominant direction that is orthogonal to the drawn start vector: the worst case for a random start only.
    random = slice_start_vector(draw_start_vector(32), 32)
    top = torch.zeros(32)
    top[0], top[1] = random[1], -random[0]
    top = top / top.norm()
    m = (100 * torch.outer(top, top) + torch.eye(32))[None]
    values = {}
    for name, start in (("random", random), ("longest-column", pick_longest_column(m))):
        v, before = power_iterate(m, start, 5, squared=False)
        values[name] = float(rayleigh_value(m, v, before, squared=False))
    assert values["longest-column"] == pytest.approx(101, rel=1e-3)
    assert values["random"] < 50


def test_pick_longest_column_selects_one_column_per_matrix() -> None:
    small = torch.tensor([[[1.0, 5.0], [0.0, 0.0]], [[2.0, 0.0], [2.0, 1.0]]])
    assert pick_longest_column(small).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_zero_matrix_has_norm_zero() -> None:
    got, _ = spectral_norm(torch.zeros(1, 4, 4), squared=True)
    assert got.tolist() == [0.0]


def test_start_vector_is_seeded_and_has_length_1() -> None:
    assert torch.equal(draw_start_vector(50, 3), draw_start_vector(50, 3))
    assert not torch.equal(draw_start_vector(50, 3), draw_start_vector(50, 4))
    for length in (1, 8, 20):
        start = slice_start_vector(draw_start_vector(8), length)
        assert start.shape == (length,)
        assert float(start.norm()) == pytest.approx(1.0)


def test_one_step_from_ones_gives_the_value_of_the_official_code() -> None:
    k = torch.randn(2, 5, 5)
    k = k @ k.mT
    v, before = power_iterate(k, torch.ones(5), 1, squared=False)
    torch.testing.assert_close(rayleigh_value(k, v, before, squared=False), (k @ torch.ones(2, 5, 1)).norm(dim=(1, 2)))
