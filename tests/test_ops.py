from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn import ops


def test_zero_has_a_side() -> None:
    assert ops.sign(torch.tensor([0.0, -0.0, -1e-30, 1e-30, -2.0, 2.0])).tolist() == [1, 1, -1, 1, -1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_sign_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.5, 0.0], dtype=dtype, requires_grad=True)
    y = ops.surrogate_sign(x, ops.triangle)
    assert y.dtype == dtype
    assert ops.sign(x).dtype == dtype
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20))
def test_signs_are_exactly_plus_or_minus_one(values: list[float]) -> None:
    y = ops.surrogate_sign(torch.tensor(values), ops.clip_closed)
    assert [float(v) for v in y] == [-1.0 if v < 0 else 1.0 for v in values]


# Typed from the published formulas, not computed by the code under test.
SLOPES = [
    (ops.straight, None, None, {-2.0: 1, 0.0: 1, 2.0: 1}),
    (ops.clip_closed, None, None, {-1.5: 0, -1.0: 1, 0.0: 1, 1.0: 1, 1.5: 0}),
    (ops.clip_open, None, None, {-1.5: 0, -1.0: 0, 0.0: 1, 0.9: 1, 1.0: 0}),
    (ops.triangle, None, None, {-1.0: 0, -0.5: 1, 0.0: 2, 0.25: 1.5, 1.5: 0}),
    (ops.tanh_slope, 2.0, 3.0, {0.0: 6.0, 0.5: 6 * (1 - math.tanh(1.0) ** 2)}),
    (
        ops.tent_slope,
        2.0,
        3.0,
        {0.0: 6 * math.sqrt(2), 0.5: 3 * (2 * math.sqrt(2) - 2), 1.0: 0.0, -0.5: 3 * (2 * math.sqrt(2) - 2)},
    ),
]


@pytest.mark.parametrize(("slope", "p", "q", "table"), SLOPES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_slope_has_its_published_values(
    slope: ops.Slope, p: float | None, q: float | None, table: dict[float, float]
) -> None:
    x = torch.tensor(list(table), dtype=torch.float64, requires_grad=True)
    state = [None if v is None else torch.tensor(v, dtype=torch.float64) for v in (p, q)]
    ops.surrogate_sign(x, slope, *state).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor(list(table.values()), dtype=torch.float64))
