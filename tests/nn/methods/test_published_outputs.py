"""Compare binary convolutions with outputs and gradients of the published code (tests/golden/methods.npz)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.nn.layers import BinaryConv2d

PRECISION = {"f32": torch.float32, "f64": torch.float64}
both_precisions = pytest.mark.parametrize("kind", PRECISION)


@pytest.fixture(scope="module")
def golden() -> Mapping[str, np.ndarray]:
    with np.load(Path(__file__).parents[2] / "golden" / "methods.npz") as arrays:
        return dict(arrays)


def make_layer(
    golden: Mapping[str, np.ndarray], method: str, kind: str, progress: float = 0.0
) -> tuple[BinaryConv2d, Tensor]:
    layer = BinaryConv2d(8, 5, 3, padding=1, method=method).to(PRECISION[kind])
    layer.weight.data = torch.from_numpy(golden["w"]).to(PRECISION[kind])
    layer.weight_binarizer.set_progress(progress)
    assert layer.input_binarizer is not None
    layer.input_binarizer.set_progress(progress)
    return layer, torch.from_numpy(golden["x"]).to(PRECISION[kind]).requires_grad_()


def assert_close_to_golden(golden: Mapping[str, np.ndarray], prefix: str, kind: str, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        expected = torch.from_numpy(golden[f"{prefix}_{name}_{kind}"]).to(PRECISION[kind])
        # Relative to the largest entry. In float32, the outputs of Bi-Real and ReActNet contain rounding errors of
        # their sums, and two decompositions of a rotation update differ by rounding. In float64 all agree to 1e-9.
        tolerance = 1e-9 if kind == "f64" else 3e-6 if prefix == "rbnnupd" else 1e-6
        rounding = 6e-6 if name == "out" and prefix in ("react", "bireal") else 0.0
        largest_entry = max(expected.abs().max().item(), 1e-30)
        error = (value.reshape(expected.shape) - expected).abs().max().item()
        assert error <= tolerance * largest_entry + rounding, (
            f"{prefix}_{name}: off by {error:.2e} of {largest_entry:.2e}"
        )


def run_backward(layer: BinaryConv2d, x: Tensor, golden: Mapping[str, np.ndarray]) -> Tensor:
    y = layer(x)
    (y * torch.from_numpy(golden["grad_out"]).to(y.dtype)).sum().backward()
    return y.detach()


def gradient_of(t: Tensor) -> Tensor:
    assert t.grad is not None
    return t.grad


@both_precisions
@pytest.mark.parametrize(("point", "progress"), list(enumerate((0.0, 0.5, 0.9))))
def test_irnet_equals_the_published_convolution(
    golden: Mapping[str, np.ndarray], kind: str, point: int, progress: float
) -> None:
    layer, x = make_layer(golden, "irnet", kind, progress)
    for binarizer in (layer.weight_binarizer, layer.input_binarizer):
        annealing = binarizer.annealing
        np.testing.assert_allclose(
            [float(annealing.t), float(annealing.k)], [golden["ir_t"][point], golden["ir_k"][point]], rtol=1e-6
        )
        annealing.t.fill_(float(golden["ir_t"][point]))  # the golden run used the float32 numbers
        annealing.k.fill_(float(golden["ir_k"][point]))
    out = run_backward(layer, x, golden)
    assert_close_to_golden(
        golden, f"ir{point}", kind, {"out": out, "gx": gradient_of(x), "gw": gradient_of(layer.weight)}
    )


@both_precisions
def test_bireal_equals_the_published_convolution(golden: Mapping[str, np.ndarray], kind: str) -> None:
    layer, x = make_layer(golden, "bireal", kind)
    out = run_backward(layer, x, golden)
    assert_close_to_golden(golden, "bireal", kind, {"out": out, "gx": gradient_of(x), "gw": gradient_of(layer.weight)})


@both_precisions
def test_reactnet_equals_the_published_convolution(golden: Mapping[str, np.ndarray], kind: str) -> None:
    layer, x = make_layer(golden, "reactnet", kind)
    shift = layer.input_binarizer.shift
    shift.data = torch.from_numpy(golden["react_bias"]).flatten().to(x.dtype)
    out = run_backward(layer, x, golden)
    assert_close_to_golden(
        golden,
        "react",
        kind,
        {"out": out, "gx": gradient_of(x), "gw": gradient_of(layer.weight), "gbias": gradient_of(shift)},
    )


RBNN_CASES = {"rbnn0": 0.0, "rbnn1": 0.5, "rbnn2": 0.9, "rbnnpi2": 0.5, "rbnnupd": 0.5}


@both_precisions
@pytest.mark.parametrize("case", RBNN_CASES)
def test_rbnn_equals_the_published_convolution(golden: Mapping[str, np.ndarray], kind: str, case: str) -> None:
    layer, x = make_layer(golden, "rbnn", kind, RBNN_CASES[case])
    binarizer, point = layer.weight_binarizer, [0.0, 0.5, 0.9].index(RBNN_CASES[case])
    for annealing in (binarizer.annealing, layer.input_binarizer.annealing):
        annealing.t.fill_(float(golden["rbnn_t"][point]))
        annealing.k.fill_(float(golden["rbnn_k"][point]))
    binarizer.left.copy_(torch.from_numpy(golden["rbnn_R1"]))
    binarizer.right.copy_(torch.from_numpy(golden["rbnn_R2"]))
    binarizer.alpha.data = torch.from_numpy(golden["rbnn_alpha"]).flatten().to(x.dtype)
    if case != "rbnnpi2":  # there theta keeps its published start, pi/2
        binarizer.theta.data = torch.from_numpy(golden["rbnn_theta"]).flatten().to(x.dtype)
    if case == "rbnnupd":
        binarizer.start_epoch(layer.weight)
        assert_close_to_golden(golden, case, kind, {"R1": binarizer.left, "R2": binarizer.right})
    out = run_backward(layer, x, golden)
    values = {"out": out, "gx": gradient_of(x), "gw": gradient_of(layer.weight), "galpha": gradient_of(binarizer.alpha)}
    if case == "rbnnpi2":  # both gradients are only rounding errors, because |sin| is flat at pi/2
        assert gradient_of(layer.weight).abs().max() < 1e-5
        assert gradient_of(binarizer.theta).abs().max() < 1e-5
        del values["gw"]
    else:
        values["gtheta"] = gradient_of(binarizer.theta)
    assert_close_to_golden(golden, case, kind, values)
