"""Retention matrices against matrices formed in full, the slow way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.retention.matrix import MATRICES, NORMALIZATIONS, align

every_matrix = pytest.mark.parametrize("kind", MATRICES)
every_normalization = pytest.mark.parametrize("normalization", NORMALIZATIONS)


def normalized(x: Tensor, normalization: str) -> Tensor:
    """Samples scaled one by one, in a loop."""
    rows = []
    for row in x:
        row = row - row.mean() if normalization == "centered" else row
        rows.append(row if normalization == "raw" else row / row.norm())
    return torch.stack(rows)


def formed(kind: str, front: Tensor, back: Tensor, normalization: str) -> Tensor:
    """RM in full, (1, n, n) or (n, c, c), straight from the equations, columns being samples."""
    if kind == "channel":
        front = F.adaptive_avg_pool2d(front, back.shape[2:])
        front, back = normalized(front, normalization), normalized(back, normalization)
        r = torch.einsum("nchw,ndhw->ncd", front, back) / back.shape[2:].numel()
        return r @ r.mT
    if kind == "square":
        a = normalized(back, normalization).flatten(1).T
        return (a.T @ a)[None]
    front, back = align(front, back)
    a, b = normalized(front, normalization).flatten(1).T, normalized(back, normalization).flatten(1).T
    return ((a.T @ b).T @ (a.T @ b))[None]


@every_matrix
@every_normalization
def test_small_and_quadratic_are_the_matrix_of_the_equations(kind: str, normalization: str) -> None:
    front, back = torch.randn(5, 3, 8, 8).double(), torch.randn(5, 6, 4, 4).double()
    matrix = MATRICES[kind](front, back, normalization)
    rm = formed(kind, front, back, normalization)
    small = matrix.small()
    torch.testing.assert_close(small.mT @ small if matrix.squared else small, rm)
    u, v = torch.randn(2, rm.shape[0], rm.shape[1]).double()
    torch.testing.assert_close(matrix.quadratic(u, v), torch.einsum("bi,bij,bj->b", u, rm, v))


@every_matrix
@every_normalization
def test_gradients_pass_a_check_by_finite_differences(kind: str, normalization: str) -> None:
    front = torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    back = torch.randn(3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    size = (3, 2) if kind == "channel" else (1, 3)
    u, v = torch.randn(2, *size).double()

    def value(front: Tensor, back: Tensor) -> Tensor:
        return MATRICES[kind](front, back, normalization).quadratic(u, v)

    assert torch.autograd.gradcheck(value, (front, back))


@given(
    n=st.integers(1, 4),
    c1=st.integers(1, 5),
    c2=st.integers(1, 5),
    side1=st.integers(1, 6),
    side2=st.integers(1, 6),
    kind=st.sampled_from(sorted(MATRICES)),
    normalization=st.sampled_from(sorted(NORMALIZATIONS)),
)
def test_maps_of_any_shape_compare(
    n: int, c1: int, c2: int, side1: int, side2: int, kind: str, normalization: str
) -> None:
    front, back = torch.randn(n, c1, side1, side1), torch.randn(n, c2, side2, side2)
    matrix = MATRICES[kind](front, back, normalization)
    small = matrix.small()
    assert torch.isfinite(small).all()
    v = torch.ones(small.shape[0], small.shape[2])
    assert matrix.quadratic(v, v).shape == (small.shape[0],)


def test_front_maps_are_pooled_and_padded_like_the_parameter_free_shortcut() -> None:
    front, back = torch.arange(16.0).reshape(1, 1, 4, 4), torch.zeros(1, 4, 2, 2)
    pooled, same = align(front, back)
    assert pooled.shape == (1, 4, 2, 2)
    assert pooled[0, 1].tolist() == [[2.5, 4.5], [10.5, 12.5]]  # 3 missing channels: one before, two after
    assert pooled[0, [0, 2, 3]].abs().sum() == 0
    assert same is back


def test_a_back_map_with_fewer_channels_is_the_one_padded() -> None:
    front, back = align(torch.ones(1, 4, 2, 2), torch.ones(1, 2, 2, 2))
    assert front.shape == back.shape == (1, 4, 2, 2)
    assert back[0, :, 0, 0].tolist() == [0, 1, 1, 0]


def test_rows_of_a_linear_layer_are_padded_only() -> None:
    front, back = align(torch.ones(2, 3), torch.ones(2, 5))
    assert front.tolist() == [[0, 1, 1, 1, 0]] * 2
    assert back.shape == (2, 5)


@pytest.mark.parametrize(
    ("front", "back"), [((2, 3, 4, 4), (3, 3, 4, 4)), ((2, 3), (2, 3, 4, 4)), ((2, 3, 4), (2, 3, 2)), ((2,), (2,))]
)
def test_maps_that_cannot_be_compared_are_refused(front: tuple[int, ...], back: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"two maps of one batch.*got shapes"):
        align(torch.ones(front), torch.ones(back))


@every_matrix
@every_normalization
@pytest.mark.parametrize("fill", [0.0, 0.37, 1e4])
def test_maps_without_a_direction_stay_finite(kind: str, normalization: str, fill: float) -> None:
    front = torch.full((3, 2, 4, 4), fill, requires_grad=True)
    back = torch.full((3, 2, 4, 4), fill, requires_grad=True)
    matrix = MATRICES[kind](front, back, normalization)
    small = matrix.small()
    v = torch.ones(small.shape[0], small.shape[2]) / small.shape[2] ** 0.5
    value = matrix.quadratic(v, v)
    if normalization == "centered":
        assert value.abs().max() < 1e-9
    value.sum().backward()
    assert back.grad is not None
    assert torch.isfinite(back.grad).all()
    assert torch.isfinite(value).all()


@every_normalization
@pytest.mark.parametrize("side", [0, 1], ids=["front", "back"])
def test_a_channel_matrix_of_one_trained_map_has_its_gradient(side: int, normalization: str) -> None:
    """The other map may be an image, or what a frozen layer gave."""
    maps = [torch.randn(3, 2, 4, 4, dtype=torch.float64) for _ in range(2)]
    u, v = torch.randn(2, 3, 2).double()
    found = []
    for trained in ((side,), (0, 1)):
        given = [x.clone().requires_grad_(i in trained) for i, x in enumerate(maps)]
        value = MATRICES["channel"](*given, normalization).quadratic(u, v).sum()
        found.append(torch.autograd.grad(value, given[side])[0])
    assert found[1].abs().max() > 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=0)


def test_unit_and_centered_forms_do_not_see_the_size_of_activations() -> None:
    front, back = torch.randn(4, 3, 4, 4), torch.randn(4, 3, 4, 4)
    for normalization, alike in (("raw", False), ("unit", True), ("centered", True)):
        one = MATRICES["batch"](front, back, normalization).small()
        two = MATRICES["batch"](3 * front, 5 * back, normalization).small()
        assert torch.allclose(one, two, atol=1e-6) == alike


@pytest.mark.parametrize("number", [0.1, -0.1])
def test_a_constant_row_that_rounding_leaves_a_little_off_zero_has_no_direction(number: float) -> None:
    x = torch.full((3, 4, 7, 7), number)
    assert (x.flatten(1) - x.flatten(1).mean(1, keepdim=True)).abs().max() > 0
    assert (MATRICES["square"](x, x, "centered").small() == 0).all()
