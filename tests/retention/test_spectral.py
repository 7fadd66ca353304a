"""Power iteration against an SVD, and how far five steps fall short."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.retention.spectral import heaviest_column, iterate, random_start, spectral_norm, start_of, value


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


def test_five_steps_come_out_low_where_the_top_eigenvalues_are_close() -> None:
    # A Wishart matrix, the correlations of 128 independent maps: what a fresh network's look like (docs/method.md).
    x = torch.randn(128, 512, generator=torch.Generator().manual_seed(0))
    rm = (x @ x.T)[None]
    v, before = iterate(rm, start_of(random_start(128), 128), 5, squared=False)
    low = 1 - float(value(rm, v, before, squared=False) / torch.linalg.matrix_norm(rm, 2))
    assert 0.05 < low < 0.4


def test_the_heaviest_column_is_a_start_that_a_lone_direction_cannot_escape() -> None:
    # One dominant direction, orthogonal to the drawn start: the worst case for a random start, none for this one.
    random = start_of(random_start(32), 32)
    top = torch.zeros(32)
    top[0], top[1] = random[1], -random[0]
    top = top / top.norm()
    m = (100 * torch.outer(top, top) + torch.eye(32))[None]
    values = {}
    for name, start in (("random", random), ("heaviest", heaviest_column(m))):
        v, before = iterate(m, start, 5, squared=False)
        values[name] = float(value(m, v, before, squared=False))
    assert values["heaviest"] == pytest.approx(101, rel=1e-3)
    assert values["random"] < 50


def test_the_heaviest_column_picks_a_unit_vector_for_each_matrix() -> None:
    small = torch.tensor([[[1.0, 5.0], [0.0, 0.0]], [[2.0, 0.0], [2.0, 1.0]]])
    assert heaviest_column(small).tolist() == [[0.0, 1.0], [1.0, 0.0]]


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
