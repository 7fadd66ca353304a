"""Retention matrices, compared with full matrices computed directly from the equations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.lcr.retention_matrix import MATRIX_STACKS, NORMALIZATIONS, align_maps
from tests.lcr.helpers import compute_bilinear_form, make_stack

every_matrix = pytest.mark.parametrize("kind", MATRIX_STACKS)
every_normalization = pytest.mark.parametrize("normalization", NORMALIZATIONS)


def normalize_samples(x: Tensor, normalization: str) -> Tensor:
    """Return the samples, each normalized in a loop."""
    rows = []
    for row in x:
        row = row - row.mean() if normalization == "centered-l2" else row
        rows.append(row if normalization == "none" else row / row.norm())
    return torch.stack(rows)


def compute_full_matrix(kind: str, front: Tensor, back: Tensor, normalization: str) -> Tensor:
    """Return the full RM, (1, n, n) or (n, c, c), from the equations (samples are columns)."""
    if kind == "per-sample":
        front = F.adaptive_avg_pool2d(front, back.shape[2:])
        front, back = normalize_samples(front, normalization), normalize_samples(back, normalization)
        r = torch.einsum("nchw,ndhw->ncd", front, back) / back.shape[2:].numel()
        return r @ r.mT
    if kind == "gram":
        a = normalize_samples(back, normalization).flatten(1).T
        return (a.T @ a)[None]
    front, back = align_maps(front, back)
    a, b = normalize_samples(front, normalization).flatten(1).T, normalize_samples(back, normalization).flatten(1).T
    return ((a.T @ b).T @ (a.T @ b))[None]


@every_matrix
@every_normalization
def test_stack_gives_the_matrix_of_the_equations(kind: str, normalization: str) -> None:
    front, back = torch.randn(5, 3, 8, 8).double(), torch.randn(5, 6, 4, 4).double()
    stack = make_stack(kind, front, back, normalization)
    rm = compute_full_matrix(kind, front, back, normalization)
    matrices = stack.iteration_matrices()
    torch.testing.assert_close(matrices.mT @ matrices if stack.squared else matrices, rm)
    u, v = torch.randn(2, rm.shape[0], rm.shape[1]).double()
    torch.testing.assert_close(compute_bilinear_form(stack, u, v), torch.einsum("bi,bij,bj->b", u, rm, v))


@every_matrix
@every_normalization
def test_gradients_pass_gradcheck(kind: str, normalization: str) -> None:
    front = torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    back = torch.randn(3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    size = (3, 2) if kind == "per-sample" else (1, 3)
    u, v = torch.randn(2, *size).double()

    def compute_value(front: Tensor, back: Tensor) -> Tensor:
        return compute_bilinear_form(make_stack(kind, front, back, normalization), u, v)

    assert torch.autograd.gradcheck(compute_value, (front, back))


@given(
    n=st.integers(1, 4),
    c1=st.integers(1, 5),
    c2=st.integers(1, 5),
    side1=st.integers(1, 6),
    side2=st.integers(1, 6),
    kind=st.sampled_from(sorted(MATRIX_STACKS)),
    normalization=st.sampled_from(sorted(NORMALIZATIONS)),
)
def test_maps_of_any_shape_can_be_compared(
    n: int, c1: int, c2: int, side1: int, side2: int, kind: str, normalization: str
) -> None:
    front, back = torch.randn(n, c1, side1, side1), torch.randn(n, c2, side2, side2)
    stack = make_stack(kind, front, back, normalization)
    matrices = stack.iteration_matrices()
    assert torch.isfinite(matrices).all()
    v = torch.ones(matrices.shape[0], matrices.shape[2])
    assert compute_bilinear_form(stack, v, v).shape == (matrices.shape[0],)


def test_front_maps_are_pooled_and_padded_like_the_parameter_free_shortcut() -> None:
    front, back = torch.arange(16.0).reshape(1, 1, 4, 4), torch.zeros(1, 4, 2, 2)
    pooled, aligned_back = align_maps(front, back)
    assert pooled.shape == (1, 4, 2, 2)
    assert pooled[0, 1].tolist() == [[2.5, 4.5], [10.5, 12.5]]  # 3 missing channels: one before, two after
    assert pooled[0, [0, 2, 3]].abs().sum() == 0
    assert aligned_back is back


def test_back_map_with_fewer_channels_is_padded() -> None:
    front, back = align_maps(torch.ones(1, 4, 2, 2), torch.ones(1, 2, 2, 2))
    assert front.shape == back.shape == (1, 4, 2, 2)
    assert back[0, :, 0, 0].tolist() == [0, 1, 1, 0]


def test_maps_of_linear_layers_are_only_padded() -> None:
    front, back = align_maps(torch.ones(2, 3), torch.ones(2, 5))
    assert front.tolist() == [[0, 1, 1, 1, 0]] * 2
    assert back.shape == (2, 5)


@pytest.mark.parametrize(
    ("front", "back"), [((2, 3, 4, 4), (3, 3, 4, 4)), ((2, 3), (2, 3, 4, 4)), ((2, 3, 4), (2, 3, 2)), ((2,), (2,))]
)
def test_maps_that_cannot_be_compared_are_rejected(front: tuple[int, ...], back: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"two feature maps of one batch.*got shapes"):
        align_maps(torch.ones(front), torch.ones(back))


@every_matrix
@every_normalization
@pytest.mark.parametrize("fill", [0.0, 0.37, 1e4])
def test_constant_maps_give_finite_values_and_gradients(kind: str, normalization: str, fill: float) -> None:
    front = torch.full((3, 2, 4, 4), fill, requires_grad=True)
    back = torch.full((3, 2, 4, 4), fill, requires_grad=True)
    stack = make_stack(kind, front, back, normalization)
    matrices = stack.iteration_matrices()
    v = torch.ones(matrices.shape[0], matrices.shape[2]) / matrices.shape[2] ** 0.5
    value = compute_bilinear_form(stack, v, v)
    if normalization == "centered-l2":
        assert value.abs().max() < 1e-9
    value.sum().backward()
    assert back.grad is not None
    assert torch.isfinite(back.grad).all()
    assert torch.isfinite(value).all()


@every_normalization
@pytest.mark.parametrize("side", [0, 1], ids=["front", "back"])
def test_per_sample_matrix_of_one_trained_map_has_the_gradient_of_both(side: int, normalization: str) -> None:
    """The other map may be an input image or the output of a frozen layer."""
    maps = [torch.randn(3, 2, 4, 4, dtype=torch.float64) for _ in range(2)]
    u, v = torch.randn(2, 3, 2).double()
    gradients = []
    for trained_sides in ((side,), (0, 1)):
        leaves = [x.clone().requires_grad_(i in trained_sides) for i, x in enumerate(maps)]
        value = compute_bilinear_form(make_stack("per-sample", *leaves, normalization), u, v).sum()
        gradients.append(torch.autograd.grad(value, leaves[side])[0])
    assert gradients[1].abs().max() > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=0)


def test_normalized_matrices_do_not_depend_on_the_scale_of_activations() -> None:
    front, back = torch.randn(4, 3, 4, 4), torch.randn(4, 3, 4, 4)
    for normalization, is_invariant in (("none", False), ("l2", True), ("centered-l2", True)):
        matrices = make_stack("cross-gram", front, back, normalization).iteration_matrices()
        matrices_of_scaled_maps = make_stack("cross-gram", 3 * front, 5 * back, normalization).iteration_matrices()
        assert torch.allclose(matrices, matrices_of_scaled_maps, atol=1e-6) == is_invariant


@pytest.mark.parametrize("number", [0.1, -0.1])
def test_rounding_errors_give_a_constant_row_no_direction(number: float) -> None:
    x = torch.full((3, 4, 7, 7), number)
    assert (x.flatten(1) - x.flatten(1).mean(1, keepdim=True)).abs().max() > 0
    assert (make_stack("gram", x, x, "centered-l2").iteration_matrices() == 0).all()
