"""The closed-form gradient of a spectral norm compared with autograd, for memory layouts, dtypes and kernels."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from lcrbnn.lcr.lcr_variants import LcrVariant
from lcrbnn.lcr.retention_loss import retention_loss
from lcrbnn.lcr.retention_matrix import NORMALIZATIONS, align_maps
from lcrbnn.lcr.spectral_norm import draw_start_vector
from tests.lcr.helpers import compute_bilinear_form, make_stack
from tests.nn.kernels.interpreted import run_interpreted

START = draw_start_vector(64)
VARIANTS = [LcrVariant(matrix=m, normalization=n) for m, n in itertools.product(("gram", "cross-gram"), NORMALIZATIONS)]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.matrix} {v.normalization}")


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def compute_explicitly(variant: LcrVariant, front: Tensor, back: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return u^T RM v, computed with autograd step by step from the equations. Rows without direction become 0."""

    def normalize_rows(x: Tensor) -> Tensor:
        x = x.flatten(1)
        x = x - x.mean(1, keepdim=True) if variant.normalization == "centered-l2" else x
        if variant.normalization == "none":
            return x
        return torch.stack([row / row.norm() if float(row.detach().norm()) > 1e-9 else 0 * row for row in x])

    front, back = align_maps(front, back)
    if variant.matrix == "gram":
        return u @ (normalize_rows(back) @ normalize_rows(back).T) @ v
    g = normalize_rows(front) @ normalize_rows(back).T
    return u @ g.T @ g @ v


@every_variant
@pytest.mark.parametrize("shapes", [((5, 3, 4, 4), (5, 6, 2, 2)), ((5, 7), (5, 7)), ((1, 2, 3, 3), (1, 2, 3, 3))])
def test_closed_form_gradient_equals_autograd_for_fixed_vectors(
    variant: LcrVariant, shapes: tuple[tuple[int, ...], ...]
) -> None:
    maps = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    for x, row in zip(maps, (0, -1), strict=True):
        if len(x) > 1:
            x[row] = 0  # a row without direction
    u, v = draw(2, len(maps[0]), seed=2)
    maps_for_stack, maps_for_autograd = ([x.clone().requires_grad_() for x in maps] for _ in range(2))
    value = compute_bilinear_form(make_stack(variant.matrix, *maps_for_stack, variant.normalization), u[None], v[None])
    expected = compute_explicitly(variant, *maps_for_autograd, u, v)
    torch.testing.assert_close(value[0], expected, rtol=1e-10, atol=1e-12)
    (3 * value.sum()).backward()
    (3 * expected).backward()
    for a, b in zip(maps_for_stack, maps_for_autograd, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


MapPairs = list[tuple[Tensor, Tensor]]


def draw_pairs(dtype: torch.dtype, seed: int = 0) -> MapPairs:
    shapes = [((8, 4, 6, 6), (8, 4, 6, 6)), ((8, 4, 6, 6), (8, 8, 3, 3)), ((8, 8, 3, 3), (8, 8, 3, 3))]
    return [tuple(draw(*s, seed=2 * i + j + seed, dtype=dtype) for j, s in enumerate(p)) for i, p in enumerate(shapes)]


def compute_loss_and_gradients(
    binary: MapPairs, reference: MapPairs, variant: LcrVariant
) -> tuple[Tensor, list[Tensor]]:
    binary = [tuple(x.detach().requires_grad_() for x in pair) for pair in binary]
    loss = retention_loss(binary, reference, variant, START).loss
    loss.backward()
    return loss.detach(), [x.grad for pair in binary for x in pair if x.grad is not None]


@every_variant
@pytest.mark.parametrize("channels_last_sides", [(0, 1), (0,), (1,)], ids=["both", "front", "back"])
def test_channels_last_maps_have_the_same_loss_and_gradients(
    variant: LcrVariant, channels_last_sides: tuple[int, ...]
) -> None:
    binary, reference = draw_pairs(torch.float64), draw_pairs(torch.float64, 10)

    def convert_layout(maps: MapPairs) -> MapPairs:
        layouts = [torch.channels_last if i in channels_last_sides else torch.contiguous_format for i in (0, 1)]
        return [tuple(x.contiguous(memory_format=m) for x, m in zip(p, layouts, strict=True)) for p in maps]

    contiguous_loss, contiguous_gradients = compute_loss_and_gradients(binary, reference, variant)
    loss, gradients = compute_loss_and_gradients(convert_layout(binary), convert_layout(reference), variant)
    torch.testing.assert_close(loss, contiguous_loss, rtol=1e-12, atol=0)
    assert len(gradients) == len(contiguous_gradients) == (3 if variant.matrix == "gram" else 6)
    for a, b in zip(gradients, contiguous_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_channels_last_maps_are_flattened_without_a_copy() -> None:
    x = draw(4, 3, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    stack = make_stack("gram", x, x, "l2")
    assert stack.backs[0].rows.data_ptr() == x.data_ptr()
    u = torch.ones(1, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(compute_bilinear_form(stack, u, u).sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@every_variant
def test_bfloat16_maps_give_the_loss_of_their_float32_copies(variant: LcrVariant) -> None:
    binary, reference = draw_pairs(torch.bfloat16), draw_pairs(torch.bfloat16, 10)
    float32_maps = [[tuple(x.float() for x in pair) for pair in maps] for maps in (binary, reference)]
    loss, gradients = compute_loss_and_gradients(binary, reference, variant)
    expected_loss, expected_gradients = compute_loss_and_gradients(*float32_maps, variant)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    for a, b in zip(gradients, expected_gradients, strict=True):
        assert a.dtype == torch.bfloat16
        assert float((a.float() - b).norm() / b.norm()) < 2**-8


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@every_variant
def test_loss_of_channels_last_bfloat16_maps_compiles(variant: LcrVariant) -> None:
    torch._dynamo.reset()
    binary, reference = (
        [tuple(x.contiguous(memory_format=torch.channels_last) for x in pair) for pair in maps]
        for maps in (draw_pairs(torch.bfloat16), draw_pairs(torch.bfloat16, 10))
    )
    loss, gradients = compute_loss_and_gradients(binary, reference, variant)
    leaves = [x.requires_grad_() for pair in binary for x in pair]

    def step(*maps: Tensor) -> Tensor:
        return retention_loss(list(zip(maps[::2], maps[1::2], strict=True)), reference, variant, START).loss

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves)
    compiled.backward()
    torch.testing.assert_close(compiled.detach(), loss, rtol=1e-5, atol=0)
    for a, b in zip([x.grad for x in leaves if x.grad is not None], gradients, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def measure_kernel_errors() -> dict[str, list[float]]:
    """Return relative errors of loss and gradients in float32, with kernels, compared with float64, without them."""
    errors_by_variant = {}
    for variant in VARIANTS:
        expected_loss, expected_gradients = compute_loss_and_gradients(
            draw_pairs(torch.float64), draw_pairs(torch.float64, 10), variant
        )
        loss, gradients = compute_loss_and_gradients(draw_pairs(torch.float32), draw_pairs(torch.float32, 10), variant)
        compared = [(loss, expected_loss), *zip(gradients, expected_gradients, strict=True)]
        errors_by_variant[f"{variant.matrix} {variant.normalization}"] = [
            float((a - b).norm() / b.norm()) for a, b in compared
        ]
    return errors_by_variant


def test_kernels_give_the_same_loss_and_gradients() -> None:
    for case, errors in run_interpreted(measure_kernel_errors).items():
        assert max(errors) < 1e-4, case


@pytest.mark.parametrize("reference_gradient", [False, True])
def test_gradient_through_the_reference_equals_autograd_of_exact_eigenvalues(reference_gradient: bool) -> None:
    variant = LcrVariant(power_iterations=500, power_iteration_init="random", reference_gradient=reference_gradient)
    x, y = (draw(6, 3, 4, 4, seed=seed).requires_grad_() for seed in (1, 2))  # the binary and the reference map

    def compute_sigma(maps: Tensor) -> Tensor:
        rows = maps.flatten(1)
        rows = rows / rows.norm(dim=1, keepdim=True)
        return torch.linalg.eigvalsh(rows @ rows.T)[-1]

    loss = retention_loss([(x, x)], [(y, y)], variant, START).loss
    expected = ((compute_sigma(x) / compute_sigma(y) - 1) / 2).square()
    torch.testing.assert_close(loss, expected, rtol=1e-8, atol=0)
    gradients = torch.autograd.grad(loss, (x, y), allow_unused=True)
    expected_gradients = torch.autograd.grad(expected, (x, y))
    torch.testing.assert_close(gradients[0], expected_gradients[0], rtol=1e-6, atol=1e-9)
    if reference_gradient:
        torch.testing.assert_close(gradients[1], expected_gradients[1], rtol=1e-6, atol=1e-9)
    else:
        assert gradients[1] is None
