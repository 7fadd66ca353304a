"""Gradients and scales of methods at a grid of points, compared with values computed by hand from the papers."""

from __future__ import annotations

import math

import pytest
import torch

from lcrbnn.nn.methods.method_registry import METHODS
from tests.nn.methods import test_values

every_method = pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
with_binary_inputs = pytest.mark.parametrize(
    "row", [m for m in METHODS.values() if 1 in m.supported_activation_bits], ids=lambda m: m.name
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
    binarizer = METHODS[name].configure("1/1").create_activation_binarizer(1)
    assert binarizer is not None
    binarizer.double().set_progress(0.5)
    x = torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1).requires_grad_()
    binarizer(x).dequantize().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(
        x.grad.flatten(), torch.tensor(ACTIVATION_SLOPES[name], dtype=torch.float64), atol=1e-7, rtol=1e-6
    )


def test_every_method_with_binary_inputs_has_expected_slopes() -> None:
    # rbnn and siman standardize each sample. The slopes of rbnn are in the next test and in test_published_outputs.py,
    # those of siman in test_values.py.
    tested_methods = {*ACTIVATION_SLOPES, "rbnn", "siman", *test_values.ACTIVATIONS}
    assert {m.name for m in METHODS.values() if m.supported_activation_bits != (32,)} == tested_methods


def test_rbnn_activation_gradient_at_hand_computed_points() -> None:
    # The sample [-1, 1] has mean 0 and standard deviation sqrt 2 (n - 1), and is standardized to -+1/sqrt 2. At half of
    # training, t = 0.316 is raised to 1 and k = 1, so the slope is sqrt 2 - 1/sqrt 2 at both points. For n = 2 the
    # derivative of the standardization is 0.
    binarizer = METHODS["rbnn"].create_activation_binarizer(1)
    assert binarizer is not None
    binarizer.double().set_progress(0.5)
    x = torch.tensor([[-1.0, 1.0]], dtype=torch.float64).reshape(1, 1, 1, 2).requires_grad_()
    binarizer(x).signs[..., 1].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-12, rtol=0)
    # The sample [-1, 0, 1] is already standardized. The derivative of its last entry is [1/6, -1/3, 1/6], and the slope
    # at 1 is sqrt 2 - 1.
    y = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).reshape(1, 1, 1, 3).requires_grad_()
    binarizer(y).signs[..., 2].sum().backward()
    assert y.grad is not None
    expected = (math.sqrt(2) - 1) * torch.tensor([1 / 6, -1 / 3, 1 / 6], dtype=torch.float64)
    torch.testing.assert_close(y.grad.flatten(), expected, atol=1e-12, rtol=0)


# A filter (1, 2, 1, 4), i.e. two input channels of four weights, for values computed by hand.
FILTER = [-1.5, -0.5, 0.25, 1.0, 1.5, 0.5, -0.25, -1.0]  # the channels add up to 0, so centering has no effect
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
    binary = METHODS[name].create_weight_binarizer(w.detach()).double()(w)
    scale = torch.ones((), dtype=torch.float64) if binary.scale is None else binary.scale
    assert scale.numel() == 1
    assert scale.item() == pytest.approx(SCALES[name])
    (binary.signs * scale.reshape(1, 1, 1, 1)).sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad.flatten(), torch.tensor(WEIGHT_SLOPES[name], dtype=torch.float64))


def test_every_method_has_expected_weight_gradients() -> None:
    # irnet and rbnn are compared with their released code (test_published_outputs.py), xnor++ is tested below.
    assert set(METHODS) == {*WEIGHT_SLOPES, "irnet", "rbnn", "xnor++", *test_values.SURROGATES}


def test_xnorpp_weight_gradient_includes_centering_and_clipping() -> None:
    w = torch.tensor(FILTER, dtype=torch.float64).reshape(1, 2, 1, 4).requires_grad_()
    binarizer = METHODS["xnor++"].configure(case=1).create_weight_binarizer(w.detach()).double()
    binarizer(w).signs[0, 0, 0, 1].backward()  # the weight -0.5 (the one in the other channel is 0.5)
    assert w.grad is not None
    expected = torch.zeros(8, dtype=torch.float64)
    expected[1], expected[5] = 0.5, -0.5  # 1 - 1/C and -1/C for C = 2
    torch.testing.assert_close(w.grad.flatten(), expected)


@pytest.mark.parametrize(
    ("case", "sizes"),
    [(1, [(4, 1, 1)]), (2, [(4, 5, 6)]), (3, [(4, 1, 1), (1, 5, 6)]), (4, [(4, 1, 1), (1, 5, 1), (1, 1, 6)])],
)
def test_xnorpp_scale_has_the_shape_of_its_case(case: int, sizes: list[tuple[int, ...]]) -> None:
    binarizer = METHODS["xnor++"].configure(case=case).create_weight_binarizer(torch.randn(4, 3, 3, 3))
    binarizer.fit_output_shape((5, 6))
    assert [tuple(p.shape) for p in binarizer.parameters()] == sizes
    assert all((p == 1).all() for p in binarizer.parameters())
