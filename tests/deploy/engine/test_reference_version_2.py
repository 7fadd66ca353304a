"""The operators of version 2 in the reference equal torch, and activation functions have the documented errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lcrbnn.deploy.engine import reference_functions as functions
from lcrbnn.deploy.engine.graph import Node
from lcrbnn.deploy.engine.reference import OPERATOR_FUNCTIONS, compute_values
from tests.deploy.engine.small_models import draw_normal, make_model

RNG = np.random.default_rng
MAX_ERROR = 2e-7  # of docs/format.md


def run_single_node(op: str, keys: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return the output of a single node."""
    return compute_values(make_model(x.shape[1:], Node(op, op, (0,), keys)), x)[1]


def to_torch(x: np.ndarray) -> torch.Tensor:
    """Return images as torch expects them: channels before height and width."""
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def to_maps(x: torch.Tensor) -> np.ndarray:
    return x.permute(0, 2, 3, 1).numpy()


def make_arguments() -> np.ndarray:
    """Return numbers of every size: dense around 0, up to the ends of float32."""
    rng = RNG(0)
    dense = np.linspace(-20, 20, 400_001)
    powers = 10.0 ** rng.uniform(-40, 38, 20_000)
    return np.concatenate([dense, powers, -powers, np.linspace(-110, 110, 100_001), [0.0, -0.0]]).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "torch_function"),
    [
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("gelu", F.gelu),
        ("gelu_tanh", partial(F.gelu, approximate="tanh")),
        ("silu", F.silu),
        ("hardsigmoid", F.hardsigmoid),
        ("hardswish", F.hardswish),
    ],
)
def test_activations_have_the_documented_error(op: str, torch_function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = make_arguments()
    with np.errstate(all="ignore"):
        y = OPERATOR_FUNCTIONS[op](Node(op, "", (0,), {}), x)
    expected = torch_function(torch.from_numpy(x.astype(np.float64))).numpy()
    assert y.dtype == np.float32
    scale = np.maximum(np.abs(x), 1) if op in ("hardswish", "gelu", "gelu_tanh", "silu") else np.ones_like(x)
    errors = np.abs(y - expected) / scale
    assert errors.max() <= MAX_ERROR, x[errors.argmax()]


def test_exp32_and_elu_have_the_documented_error() -> None:
    x = make_arguments()
    x = x[x <= 0]
    expected = np.exp(x.astype(np.float64))
    with np.errstate(all="ignore"):
        result, result_minus_1 = functions.exp32(x), functions.expm1_32(x[x != 0])
        y = functions.elu32(make_arguments(), 0.7)
    is_normal = x >= -87
    assert np.abs(result / np.where(is_normal, expected, 1) - 1)[is_normal].max() <= MAX_ERROR
    assert not result[~is_normal].any()
    relative_errors = np.abs(result_minus_1 / np.expm1(x[x != 0].astype(np.float64)) - 1)
    assert relative_errors.max() <= MAX_ERROR
    expected = F.elu(torch.from_numpy(make_arguments().astype(np.float64)), 0.7).numpy()
    np.testing.assert_allclose(y, expected, rtol=3 * MAX_ERROR, atol=1e-40)


def test_activations_keep_the_sign_of_small_numbers() -> None:
    """A later bconv compares these values with thresholds, often 0."""
    x = np.array([-1e-30, -1e-8, 1e-8, 1e-30], np.float32)
    for function in (functions.tanh32, functions.gelu32, functions.gelu_tanh32, functions.silu32):
        assert np.array_equal(np.sign(function(x)), np.sign(x))
    assert np.array_equal(np.sign(functions.elu32(x, 1.0)), np.sign(x))


def test_activations_accept_infinity_and_nan() -> None:
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(functions.sigmoid32(x), [1, 0, np.nan])
        np.testing.assert_array_equal(functions.tanh32(x), [1, -1, np.nan])
        np.testing.assert_array_equal(functions.elu32(x, 1.5), [np.inf, -1.5, np.nan])


@pytest.mark.parametrize(("low", "high"), [(None, 0.5), (-0.5, None), (-0.5, 0.5), (0.5, -0.5), (None, None)])
def test_clamp_equals_torch(low: float | None, high: float | None) -> None:
    x = draw_normal(RNG(0), 2, 3, 4, 5)
    keys = {key: value for key, value in (("low", low), ("high", high)) if value is not None}
    expected = x if not keys else torch.from_numpy(x).clamp(low, high).numpy()
    assert np.array_equal(run_single_node("clamp", keys, x), expected)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 4), (9, 2), (8, 8), (7, 13)])
def test_bilinear_equals_torch(size: tuple[int, int], align_corners: bool) -> None:
    x = draw_normal(RNG(0), 2, 4, 5, 3)
    expected = to_maps(F.interpolate(to_torch(x), size, mode="bilinear", align_corners=align_corners))
    y = run_single_node("bilinear", {"size": size, "align_corners": int(align_corners)}, x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (2, 3), (7, 8), (9, 1)])
def test_adaptive_avgpool_equals_torch(size: tuple[int, int]) -> None:
    x = draw_normal(RNG(0), 2, 7, 8, 3)
    expected = to_maps(F.adaptive_avg_pool2d(to_torch(x).double(), size))
    np.testing.assert_allclose(run_single_node("adaptive_avgpool", {"size": size}, x), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("groups", "spatial"), [(1, 0), (1, 1), (3, 1), (6, 1), (2, 0)])
def test_normalize_equals_torch(groups: int, spatial: int) -> None:
    rng = RNG(0)
    x, a, b = draw_normal(rng, 2, 4, 5, 6) * 3 + 1, draw_normal(rng, 6), draw_normal(rng, 6)
    y = run_single_node("normalize", {"groups": groups, "spatial": spatial, "eps": 1e-3, "a": a, "b": b}, x)
    image = to_torch(x) if spatial else torch.from_numpy(x.reshape(-1, 6, 1, 1))
    expected = to_maps(F.group_norm(image.double(), groups, torch.tensor(a).double(), torch.tensor(b).double(), 1e-3))
    np.testing.assert_allclose(y, expected.reshape(x.shape), rtol=1e-5, atol=1e-5)


def test_normalize_of_constant_channels_is_finite() -> None:
    x, a, b = np.full((1, 2, 2, 3), 1e6, np.float32), np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    y = run_single_node("normalize", {"groups": 3, "spatial": 1, "eps": 1e-5, "a": a, "b": b}, x)
    assert np.array_equal(y, np.broadcast_to(b, x.shape))


@pytest.mark.parametrize("transpose", [0, 1])
def test_matmul_equals_torch(transpose: int) -> None:
    rng = RNG(0)
    x, y = draw_normal(rng, 2, 3, 4, 5), draw_normal(rng, 2, 3, 6, 5)
    second = y if transpose else np.ascontiguousarray(y.transpose(0, 1, 3, 2))
    got = OPERATOR_FUNCTIONS["matmul"](Node("matmul", "", (0, 1), {"transpose": transpose}), x, second)
    expected = torch.from_numpy(x).double() @ torch.from_numpy(y).double().transpose(2, 3)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, atol=1e-6)


def test_take_equals_torch_indexing() -> None:
    """Padding of every kind, nearest resizing, channel shuffle, slices and concatenation are index tables."""
    x = draw_normal(RNG(0), 2, 4, 5, 6)
    image = to_torch(x)

    def take(**keys: Any) -> np.ndarray:
        return run_single_node("take", {k: np.array(v, np.int32) if k != "fill" else v for k, v in keys.items()}, x)

    padded = F.pad(image, (1, 2, 0, 1), value=2.5)
    rows, columns = [0, 1, 2, 3, -1], [-1, 0, 1, 2, 3, 4, -1, -1]
    assert np.array_equal(take(rows=rows, columns=columns, fill=2.5), to_maps(padded))
    assert np.array_equal(take(rows=rows, columns=columns), to_maps(F.pad(image, (1, 2, 0, 1))))
    reflected = F.pad(image, (2, 1, 1, 1), mode="reflect")
    rows, columns = [1, 0, 1, 2, 3, 2], [2, 1, 0, 1, 2, 3, 4, 3]
    assert np.array_equal(take(rows=rows, columns=columns), to_maps(reflected))
    resized = F.interpolate(image, (8, 5), mode="nearest")
    assert np.array_equal(take(rows=[0, 0, 1, 1, 2, 2, 3, 3]), to_maps(resized))
    shuffled = F.channel_shuffle(image, 3)
    assert np.array_equal(take(channels=[0, 2, 4, 1, 3, 5]), to_maps(shuffled))


def test_strided_equals_torch_reshape_and_permute() -> None:
    x = draw_normal(RNG(0), 2, 4, 6, 8)  # rows, columns, channels
    shuffled = F.pixel_shuffle(to_torch(x), 2)  # channel 4 · o + 2 · dy + dx becomes pixel (2 y + dy, 2 x + dx)
    keys = {"shape": (8, 12, 2), "lengths": (4, 2, 6, 2, 2), "strides": (48, 2, 8, 1, 4), "offset": 0}
    assert np.array_equal(run_single_node("strided", keys, x), to_maps(shuffled))
    keys = {"shape": (6, 8, 4), "lengths": (6, 8, 4), "strides": (8, 1, 48), "offset": 0}
    assert np.array_equal(run_single_node("strided", keys, x), x.transpose(0, 2, 3, 1))
    keys = {"shape": (1, 2, 192), "lengths": (2, 192), "strides": (0, -1), "offset": 191}
    expected = np.broadcast_to(x.reshape(2, 1, 192)[:, :, ::-1], (2, 2, 192))
    assert np.array_equal(run_single_node("strided", keys, x)[:, 0], expected)


def test_constants_are_repeated_and_float16_is_converted() -> None:
    value = draw_normal(RNG(0), 1, 1, 3).astype(np.float16)
    nodes = (Node("constant", "", (), {"value": value}), Node("multiply", "", (0, 1), {}))
    x = draw_normal(RNG(1), 2, 4, 5, 3)
    assert np.array_equal(compute_values(make_model((4, 5, 3), *nodes), x)[2], x * value.astype(np.float32))
