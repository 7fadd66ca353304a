"""The gradient of a spectral norm in closed form, against the calculus; layouts and types of maps; the kernels."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from lcrbnn.retention import Form, retention_loss
from lcrbnn.retention.matrix import MATRICES, NORMALIZATIONS, align
from lcrbnn.retention.spectral import random_start
from tests.kernels.interpreted import run_interpreted

START = random_start(64)
FORMS = [Form(matrix=m, normalization=n) for m, n in itertools.product(("square", "batch"), NORMALIZATIONS)]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.matrix} {f.normalization}")


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def explicit(form: Form, front: Tensor, back: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """u^T RM v through every step of the equations; a row without direction counts 0."""

    def scaled(x: Tensor) -> Tensor:
        x = x.flatten(1)
        x = x - x.mean(1, keepdim=True) if form.normalization == "centered" else x
        if form.normalization == "raw":
            return x
        return torch.stack([row / row.norm() if float(row.detach().norm()) > 1e-9 else 0 * row for row in x])

    front, back = align(front, back)
    if form.matrix == "square":
        return u @ (scaled(back) @ scaled(back).T) @ v
    g = scaled(front) @ scaled(back).T
    return u @ g.T @ g @ v


@every_form
@pytest.mark.parametrize("shapes", [((5, 3, 4, 4), (5, 6, 2, 2)), ((5, 7), (5, 7)), ((1, 2, 3, 3), (1, 2, 3, 3))])
def test_it_is_what_autograd_finds_for_fixed_vectors(form: Form, shapes: tuple[tuple[int, ...], ...]) -> None:
    maps = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    for x, row in zip(maps, (0, -1), strict=True):
        if len(x) > 1:
            x[row] = 0  # has no direction
    u, v = draw(2, len(maps[0]), seed=2)
    ours, theirs = ([x.clone().requires_grad_() for x in maps] for _ in range(2))
    got = MATRICES[form.matrix](*ours, form.normalization).quadratic(u[None], v[None])
    want = explicit(form, *theirs, u, v)
    torch.testing.assert_close(got[0], want, rtol=1e-10, atol=1e-12)
    (3 * got.sum()).backward()
    (3 * want).backward()
    for a, b in zip(ours, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


Maps = list[tuple[Tensor, Tensor]]


def maps_of(dtype: torch.dtype, seed: int = 0) -> Maps:
    shapes = [((8, 4, 6, 6), (8, 4, 6, 6)), ((8, 4, 6, 6), (8, 8, 3, 3)), ((8, 8, 3, 3), (8, 8, 3, 3))]
    return [tuple(draw(*s, seed=2 * i + j + seed, dtype=dtype) for j, s in enumerate(p)) for i, p in enumerate(shapes)]


def loss_and_gradients(ours: Maps, theirs: Maps, form: Form) -> tuple[Tensor, list[Tensor]]:
    ours = [tuple(x.detach().requires_grad_() for x in pair) for pair in ours]
    loss = retention_loss(ours, theirs, form, START).loss
    loss.backward()
    return loss.detach(), [x.grad for pair in ours for x in pair if x.grad is not None]


@every_form
@pytest.mark.parametrize("which", [(0, 1), (0,), (1,)], ids=["both", "front", "back"])
def test_maps_stored_channels_last_give_the_same_loss_and_gradient(form: Form, which: tuple[int, ...]) -> None:
    ours, theirs = maps_of(torch.float64), maps_of(torch.float64, 10)

    def last(maps: Maps) -> Maps:
        layouts = [torch.channels_last if i in which else torch.contiguous_format for i in (0, 1)]
        return [tuple(x.contiguous(memory_format=m) for x, m in zip(p, layouts, strict=True)) for p in maps]

    plain, gradients = loss_and_gradients(ours, theirs, form)
    other, others = loss_and_gradients(last(ours), last(theirs), form)
    torch.testing.assert_close(other, plain, rtol=1e-12, atol=0)
    assert len(others) == len(gradients) == (3 if form.matrix == "square" else 6)
    for a, b in zip(others, gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_rows_of_maps_stored_channels_last_are_a_view_and_so_is_their_gradient() -> None:
    x = draw(4, 3, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    stack = MATRICES["square"](x, x, "unit")
    assert stack.backs[0].x.data_ptr() == x.data_ptr()
    u = torch.ones(1, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(stack.quadratic(u, u).sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@every_form
def test_bfloat16_maps_give_the_loss_of_their_float32_copies(form: Form) -> None:
    ours, theirs = maps_of(torch.bfloat16), maps_of(torch.bfloat16, 10)
    wide = [[tuple(x.float() for x in pair) for pair in maps] for maps in (ours, theirs)]
    loss, gradients = loss_and_gradients(ours, theirs, form)
    want, wanted = loss_and_gradients(*wide, form)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=0)
    for a, b in zip(gradients, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        assert float((a.float() - b).norm() / b.norm()) < 2**-8


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@every_form
def test_bfloat16_maps_stored_channels_last_compile(form: Form) -> None:
    torch._dynamo.reset()
    ours, theirs = (
        [tuple(x.contiguous(memory_format=torch.channels_last) for x in pair) for pair in maps]
        for maps in (maps_of(torch.bfloat16), maps_of(torch.bfloat16, 10))
    )
    loss, gradients = loss_and_gradients(ours, theirs, form)
    leaves = [x.requires_grad_() for pair in ours for x in pair]

    def step(*maps: Tensor) -> Tensor:
        return retention_loss(list(zip(maps[::2], maps[1::2], strict=True)), theirs, form, START).loss

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves)
    compiled.backward()
    torch.testing.assert_close(compiled.detach(), loss, rtol=1e-5, atol=0)
    for a, b in zip([x.grad for x in leaves if x.grad is not None], gradients, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def differences_through_kernels() -> dict[str, list[float]]:
    """Loss and gradients in float32, where kernels take over, relative to float64, where they do not."""
    found = {}
    for form in FORMS:
        want, wanted = loss_and_gradients(maps_of(torch.float64), maps_of(torch.float64, 10), form)
        got, gradients = loss_and_gradients(maps_of(torch.float32), maps_of(torch.float32, 10), form)
        pairs = [(got, want), *zip(gradients, wanted, strict=True)]
        found[f"{form.matrix} {form.normalization}"] = [float((a - b).norm() / b.norm()) for a, b in pairs]
    return found


def test_the_loss_through_the_kernels_is_the_loss() -> None:
    for case, errors in run_interpreted(differences_through_kernels).items():
        assert max(errors) < 1e-4, case
