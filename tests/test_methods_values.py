"""The gradients and scales of each method at a grid of points, as published: typed here, or in tests/methods."""

from __future__ import annotations

import math

import pytest
import torch

from lcrbnn.methods import METHODS
from tests.methods import test_values

every_method = pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
with_binary_inputs = pytest.mark.parametrize(
    "row", [m for m in METHODS.values() if 1 in m.activation_bits], ids=lambda m: m.name
)


GRID = [-1.5, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5]
TANH_HALF = [1 - math.tanh(0.1 * x) ** 2 for x in GRID]  # irnet at 50 %: t = 0.1, k = 10, so k t = 1

ACTIVATION_SLOPES = {
    "bnn": [0, 1, 1, 1, 1, 1, 1, 0],
    "xnor": [0, 0, 1, 1, 1, 1, 0, 0],
    "xnor++": [0, 0, 1, 1, 1, 1, 0, 0],
    "dorefa": [0, 0, 0, 1, 1, 1, 1, 0],
    "bireal": [0, 0, 1, 2, 1.5, 1, 0, 0],
    "reactnet": [0, 0, 1, 2, 1.5, 1, 0, 0],  # its shift starts at 0
    "irnet": TANH_HALF,
}


@pytest.mark.parametrize("name", ACTIVATION_SLOPES)
def test_activation_gradients_have_their_published_values(name: str) -> None:
    binarizer = METHODS[name].configure("1/1").activation_binarizer(1)
    assert binarizer is not None
    binarizer.double().advance(0.5)
    x = torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1).requires_grad_()
    binarizer(x).value().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(
        x.grad.flatten(), torch.tensor(ACTIVATION_SLOPES[name], dtype=torch.float64), atol=1e-7, rtol=1e-6
    )


def test_every_method_with_binary_inputs_has_typed_slopes() -> None:
    # rbnn and siman standardise each sample: slopes of one are typed in the next test and compared with the released
    # code, those of the other are with its weights in tests/methods/test_values.py.
    typed = {*ACTIVATION_SLOPES, "rbnn", "siman", *test_values.ACTIVATIONS}
    assert {m.name for m in METHODS.values() if m.activation_bits != (32,)} == typed


def test_rbnn_activation_gradient_at_hand_computed_points() -> None:
    # A sample of [-1, 1]: mean 0, n-1 deviation sqrt 2, standardised to -+1/sqrt 2. At half of training t = 0.316
    # counts as 1, k as 1: slope sqrt 2 - 1/sqrt 2 at both. The standardisation itself has derivative 0 for n = 2 ...
    binarizer = METHODS["rbnn"].activation_binarizer(1)
    assert binarizer is not None
    binarizer.double().advance(0.5)
    x = torch.tensor([[-1.0, 1.0]], dtype=torch.float64).reshape(1, 1, 1, 2).requires_grad_()
    binarizer(x).signs[..., 1].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-12, rtol=0)
    # ... and for [-1, 0, 1], which it leaves as it is, that of the last is [1/6, -1/3, 1/6]; slope sqrt 2 - 1 at 1.
    y = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).reshape(1, 1, 1, 3).requires_grad_()
    binarizer(y).signs[..., 2].sum().backward()
    assert y.grad is not None
    expected = (math.sqrt(2) - 1) * torch.tensor([1 / 6, -1 / 3, 1 / 6], dtype=torch.float64)
    torch.testing.assert_close(y.grad.flatten(), expected, atol=1e-12, rtol=0)


# A filter (1, 2, 1, 4) = two input channels of four weights, for which everything can be computed by hand.
FILTER = [-1.5, -0.5, 0.25, 1.0, 1.5, 0.5, -0.25, -1.0]  # each pair of channels sums to 0, so centring changes nothing
INSIDE = [0, 1, 1, 0, 0, 1, 1, 0]  # |w| < 1
N, MAGNITUDE = 8, 6.5 / 8  # weights of the filter, mean |w|

WEIGHT_SLOPES = {  # d(alpha sign w) / dw
    "bnn": [1] * 8,
    "xnor": [(MAGNITUDE * inside + 1 / N) * (1 - 1 / 2) * N for inside in INSIDE],
    "bwn": [(MAGNITUDE * inside + 1 / N) * (1 - 1 / 2) * N for inside in INSIDE],
    "dorefa": [1] * 8,
    "bireal": [0, 1, 1, 1, 0, 1, 1, 1],
    "reactnet": [0, 1, 1, 1, 0, 1, 1, 1],
}
SCALES = {
    "bnn": 1.0,
    "xnor": MAGNITUDE,
    "bwn": MAGNITUDE,
    "dorefa": MAGNITUDE,
    "bireal": MAGNITUDE,
    "reactnet": MAGNITUDE,
}


@pytest.mark.parametrize("name", WEIGHT_SLOPES)
def test_weight_scales_and_gradients_have_their_published_values(name: str) -> None:
    w = torch.tensor(FILTER, dtype=torch.float64).reshape(1, 2, 1, 4).requires_grad_()
    binary = METHODS[name].weight_binarizer(w.detach()).double()(w)
    scale = torch.ones((), dtype=torch.float64) if binary.scale is None else binary.scale
    assert scale.numel() == 1
    assert scale.item() == pytest.approx(SCALES[name])
    (binary.signs * scale.reshape(1, 1, 1, 1)).sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad.flatten(), torch.tensor(WEIGHT_SLOPES[name], dtype=torch.float64))


def test_every_method_has_typed_weight_gradients() -> None:
    # irnet and rbnn are compared with their released code (test_methods_golden), xnor++ by hand below.
    assert set(METHODS) == {*WEIGHT_SLOPES, "irnet", "rbnn", "xnor++", *test_values.SURROGATES}


def test_xnorpp_weight_gradient_passes_centring_and_a_clip() -> None:
    w = torch.tensor(FILTER, dtype=torch.float64).reshape(1, 2, 1, 4).requires_grad_()
    binarizer = METHODS["xnor++"].configure(case=1).weight_binarizer(w.detach()).double()
    binarizer(w).signs[0, 0, 0, 1].backward()  # the weight -0.5, whose partner in the other channel is 0.5
    assert w.grad is not None
    expected = torch.zeros(8, dtype=torch.float64)
    expected[1], expected[5] = 0.5, -0.5  # 1 - 1/C and -1/C for C = 2
    torch.testing.assert_close(w.grad.flatten(), expected)


@pytest.mark.parametrize(
    ("case", "sizes"),
    [(1, [(4, 1, 1)]), (2, [(4, 5, 6)]), (3, [(4, 1, 1), (1, 5, 6)]), (4, [(4, 1, 1), (1, 5, 1), (1, 1, 6)])],
)
def test_xnorpp_learns_a_scale_of_the_shape_of_its_case(case: int, sizes: list[tuple[int, ...]]) -> None:
    binarizer = METHODS["xnor++"].configure(case=case).weight_binarizer(torch.randn(4, 3, 3, 3))
    binarizer.fit((5, 6))
    assert [tuple(p.shape) for p in binarizer.parameters()] == sizes
    assert all((p == 1).all() for p in binarizer.parameters())


# ---------------------------------------------------------------------------------------------------------------
# Schedules, steps, options.
