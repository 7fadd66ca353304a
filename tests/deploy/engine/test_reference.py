"""The reference equals torch, loops over single numbers, and closed forms."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lcrbnn.deploy.engine.bits import pack_signs, unpack_signs
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.deploy.engine.reference import (
    compute_accumulators,
    compute_signs,
    compute_values,
    preprocess_pixels,
    run_reference,
)
from lcrbnn.errors import InputError
from tests.deploy.engine.small_models import (
    draw_attributes,
    draw_normal,
    draw_window,
    make_model,
    make_model_with_every_op,
    make_resnet20,
    make_window,
)

CHANNELS = [*range(1, 21), *range(63, 67)]


def run_single_node(op: str, keys: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return the output of a single node."""
    return compute_values(make_model(x.shape[1:], Node(op, op, (0,), keys)), x)[1]


def convolve_with_torch(
    keys: dict[str, Any], x: np.ndarray, weight: np.ndarray, padding_value: float = 0
) -> np.ndarray:
    """Return torch's convolution in double precision, channels last; weight is [out, kh, kw, in/groups]."""
    top, left, bottom, right = keys["pad"]
    image = F.pad(torch.from_numpy(x).double().permute(0, 3, 1, 2), (left, right, top, bottom), value=padding_value)
    kernel = torch.from_numpy(weight).double().permute(0, 3, 1, 2)
    slide = {key: keys[key] for key in ("stride", "dilation", "groups")}
    return F.conv2d(image, kernel, **slide).permute(0, 2, 3, 1).numpy()


def draw_case(channels: int) -> tuple[np.random.Generator, int, dict[str, Any], np.ndarray]:
    """Return a generator, a number of outputs, a window and images, drawn for a number of channels."""
    rng = np.random.default_rng(channels)
    slide = draw_window(rng, channels)
    h, w = (int(v) for v in rng.integers(5, 10, 2))
    return rng, slide["groups"] * int(rng.integers(1, 4)), slide, draw_normal(rng, 2, h, w, channels)


def unpack_weight(keys: dict[str, Any], x: np.ndarray) -> np.ndarray:
    depth = x.shape[3] // keys["groups"]
    return unpack_signs(*keys["weight"]).reshape(-1, *keys["kernel"], depth).astype(np.float32)


@pytest.mark.parametrize("channels", CHANNELS)
def test_conv_equals_torch(channels: int) -> None:
    rng, out, slide, x = draw_case(channels)
    keys = draw_attributes(rng, "conv", channels, out, slide)
    plain = {key: value for key, value in keys.items() if key != "bias"}
    want = convolve_with_torch(keys, x, keys["weight"])
    np.testing.assert_allclose(run_single_node("conv", plain, x), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(run_single_node("conv", keys, x), want + keys["bias"], rtol=1e-6, atol=1e-6)


def test_float16_weights_are_converted_exactly() -> None:
    rng, out, slide, x = draw_case(6)
    keys = draw_attributes(rng, "conv", 6, out, slide)
    half = keys["weight"].astype(np.float16)
    from_float32 = run_single_node("conv", keys | {"weight": half.astype(np.float32)}, x)
    assert np.array_equal(run_single_node("conv", keys | {"weight": half}, x), from_float32)
    assert not np.array_equal(run_single_node("conv", keys, x), from_float32)


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
@pytest.mark.parametrize("channels", CHANNELS)
def test_bconv_sums_equal_torch_exactly(channels: int, pad_sign: int) -> None:
    rng, out, slide, x = draw_case(channels)
    keys = draw_attributes(rng, "bconv", channels, out, slide) | {"pad_sign": pad_sign}
    signs = np.where(x < keys["threshold"], np.float32(-1), np.float32(1))
    sums = compute_accumulators(Node("bconv", "", (0,), keys), x)
    assert sums.dtype == np.int32
    assert np.array_equal(sums, convolve_with_torch(keys, signs, unpack_weight(keys, x), pad_sign))


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_bconv_sums_equal_loops_over_bits(pad_sign: int) -> None:
    """Read the weight bytes directly: row o, bit (ky·kw + kx)·depth + channel, the lowest bit first."""
    rng = np.random.default_rng(1)
    slide = make_window((2, 3), (2, 1), (1, 0, 2, 1), (1, 2), 2)
    keys = draw_attributes(rng, "bconv", 6, 4, slide) | {"pad_sign": pad_sign}
    x = draw_normal(rng, 2, 5, 7, 6)
    got = compute_accumulators(Node("bconv", "", (0,), keys), x)
    assert got.shape == (2, (5 + 3 - 1 - 1) // 2 + 1, 7 + 1 - 4 - 1 + 1, 4)
    for n, y, z, o in product(*map(range, got.shape)):
        total = 0
        for ky, kx, c in product(range(2), range(3), range(3)):
            bit = (ky * 3 + kx) * 3 + c
            weight = 1 if keys["weight"].packed[o, bit // 8] >> bit % 8 & 1 else -1
            row, column, channel = 2 * y - 1 + ky, z + 2 * kx, 3 * (o // 2) + c
            inside = 0 <= row < 5 and 0 <= column < 7
            sign = (-1 if x[n, row, column, channel] < keys["threshold"][channel] else 1) if inside else pad_sign
            total += weight * sign
        assert got[n, y, z, o] == total


def test_sums_of_many_channels_are_not_rounded() -> None:
    """All signs agree except one, with more terms than float16 or bfloat16 can count."""
    n = 2**20 - 1
    weight = np.ones((1, n))
    weight[0, 7] = -1
    keys = {
        "weight": PackedSigns(pack_signs(weight), n),
        "threshold": np.zeros(n, np.float32),
        "pad_sign": 0,
        **make_window(),
    }
    assert compute_accumulators(Node("bconv", "", (0,), keys), np.ones((1, 1, 1, n), np.float32)).item() == n - 2


def test_signs_below_the_threshold_are_minus_one_and_all_others_plus_one() -> None:
    inf, nan, tiny = np.inf, np.nan, np.float32(1e-45)
    x = np.array([0.0, -0.0, nan, -tiny, 0.5, inf, -inf, inf], np.float32).reshape(1, 1, 1, 8)
    threshold = np.array([0.0, 0.0, 0.0, 0.0, 0.5, inf, -inf, -inf], np.float32)
    got = compute_signs(Node("bconv", "", (0,), {"threshold": threshold}), x)
    assert got.dtype == np.int8
    assert got.ravel().tolist() == [1, 1, 1, -1, 1, 1, 1, 1]
    assert compute_signs(Node("bconv", "", (0,), {"threshold": -threshold}), x).ravel()[6] == -1


def test_mean_thresholds_are_computed_per_image() -> None:
    x = np.array([[1, 2, 3, 6], [-1, -1, -1, -1]], np.float32).reshape(2, 2, 1, 2)
    got = compute_signs(Node("bconv", "", (0,), {"threshold": "mean"}), x)
    assert got.reshape(2, 4).tolist() == [[-1, -1, 1, 1], [1, 1, 1, 1]]


def test_mean_thresholds_are_summed_in_double_precision() -> None:
    """A float32 sum loses ones added to 2^24, in all usual orders, so its mean is 16401 or below."""
    x = np.ones((1, 1, 1, 1024), np.float32)
    x[..., 0], x[..., -1] = 2**24, 16401
    assert (2**24 + 1022 + 16401) / 1024 > 16401
    assert x.mean(dtype=np.float32) <= 16401
    assert compute_signs(Node("bconv", "", (0,), {"threshold": "mean"}), x).ravel()[-1] == -1


@pytest.mark.parametrize("width", [None, 1, 3])
def test_scales_of_bconv_round_after_each_operation(width: int | None) -> None:
    """Recompute each value in double precision, which represents each product of float32 numbers exactly."""
    rng = np.random.default_rng(3)
    keys = draw_attributes(rng, "bconv", 5, 3, make_window((3, 3), pad=(1, 1, 1, 1)))
    x = draw_normal(rng, 2, 6, 7, 5)
    if width:
        keys["spatial"] = draw_normal(rng, 6, 7, width)
    acc = compute_accumulators(Node("bconv", "", (0,), keys), x)
    got = run_single_node("bconv", keys, x)
    fused = 0
    for n, y, z, o in product(*map(range, acc.shape)):
        value = np.float64(acc[n, y, z, o])
        if width:
            value = np.float64(np.float32(np.float64(keys["spatial"][y, z, o % width]) * value))
        scaled = np.float64(keys["a"][o]) * value
        assert got[n, y, z, o] == np.float32(np.float64(np.float32(scaled)) + np.float64(keys["b"][o]))
        fused += got[n, y, z, o] != np.float32(scaled + np.float64(keys["b"][o]))
    assert fused  # these numbers distinguish one rounding from two


@pytest.mark.parametrize("channels", CHANNELS)
def test_wconv_equals_torch(channels: int) -> None:
    rng, out, slide, x = draw_case(channels)
    keys = draw_attributes(rng, "wconv", channels, out, slide)
    total = convolve_with_torch(keys, x, unpack_weight(keys, x))
    np.testing.assert_allclose(run_single_node("wconv", keys, x), keys["a"] * total + keys["b"], rtol=1e-5, atol=1e-5)
    for width in (1, out):
        spatial = draw_normal(rng, *total.shape[1:3], width)
        want = keys["a"] * (spatial * total) + keys["b"]
        np.testing.assert_allclose(run_single_node("wconv", keys | {"spatial": spatial}, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_maxpool_equals_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, stride, low, high = (
        tuple(int(v) for v in rng.integers(a, b, 2)) for a, b in ((2, 5), (1, 4), (0, 2), (0, 2))
    )
    x = (
        draw_normal(rng, 2, *rng.integers(5, 10, 2), int(rng.integers(1, 7))) - 3
    )  # all values are negative, so that padding with 0 would be visible
    got = run_single_node("maxpool", {"kernel": kernel, "stride": stride, "pad": (*low, *high)}, x)
    padded = F.pad(torch.from_numpy(x).permute(0, 3, 1, 2), (low[1], high[1], low[0], high[0]), value=-torch.inf)
    assert np.array_equal(got, F.max_pool2d(padded, kernel, stride).permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize(("size", "kernel", "stride"), [(6, 2, 2), (7, 2, 2), (7, 3, 2), (8, 3, 3), (5, 5, 1)])
def test_avgpool_equals_torch_with_ceil_mode(size: int, kernel: int, stride: int) -> None:
    x = draw_normal(np.random.default_rng(size), 2, size, size + 1, 3)
    over = [-(-(side - kernel) // stride) * stride + kernel - side for side in x.shape[1:3]]
    image = torch.from_numpy(x).permute(0, 3, 1, 2)
    got = run_single_node("avgpool", {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (0, 0, *over)}, x)
    want = F.avg_pool2d(image, kernel, stride, ceil_mode=True).permute(0, 2, 3, 1)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "keys", "want"),
    [
        ("affine", {"a": [2, 3], "b": [10, 20]}, [[8, 20], [10, 23], [12, 29]]),
        ("shift", {"b": [10, 20]}, [[9, 20], [10, 21], [11, 23]]),
        ("hardtanh", {}, [[-1, 0], [0, 1], [1, 1]]),
        ("relu", {}, [[0, 0], [0, 1], [1, 3]]),
        ("prelu", {"slope": [5, 7]}, [[-5, 0], [0, 1], [1, 3]]),
        ("mean", {}, [[0, 4 / 3]]),
        ("subsample", {"stride": (2, 1)}, [[-1, 0], [1, 3]]),
        ("channels", {"before": 1, "after": 2}, [[0, -1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 3, 0, 0]]),
        ("flatten", {}, [[-1, 0, 0, 1, 1, 3]]),
    ],
)
def test_simple_ops_give_the_expected_values(op: str, keys: dict[str, Any], want: list[list[float]]) -> None:
    """The input has three pixels of two channels: (-1, 0), (0, 1), (1, 3)."""
    keys = {key: np.array(value, np.float32) if isinstance(value, list) else value for key, value in keys.items()}
    x = np.array([[-1, 0], [0, 1], [1, 3]], np.float32).reshape(1, 3, 1, 2)
    got = run_single_node(op, keys, x)
    assert got.dtype == np.float32
    assert got[0, :, 0].tolist() == np.array(want, np.float32).tolist()


def test_activations_equal_torch() -> None:
    x = draw_normal(np.random.default_rng(0), 2, 3, 3, 5)
    image, slope = torch.from_numpy(x).permute(0, 3, 1, 2), draw_normal(np.random.default_rng(1), 5)
    for op, keys, want in (
        ("prelu", {"slope": slope}, F.prelu(image, torch.from_numpy(slope))),
        ("relu", {}, F.relu(image)),
        ("hardtanh", {}, F.hardtanh(image)),
    ):
        assert np.array_equal(run_single_node(op, keys, x), want.permute(0, 2, 3, 1).numpy()), op


def test_softmax_is_over_channels_and_does_not_overflow() -> None:
    x = draw_normal(np.random.default_rng(0), 2, 3, 3, 5) * 5 + 1000
    np.testing.assert_allclose(
        run_single_node("softmax", {}, x), torch.from_numpy(x).double().softmax(3).numpy(), rtol=1e-6
    )


def test_every_value_has_the_inferred_shape() -> None:
    rng = np.random.default_rng(0)
    for model in (make_model_with_every_op(rng), make_resnet20(rng)):
        made_values = compute_values(model, draw_normal(rng, 3, *model.shape))
        assert [value.shape for value in made_values] == [(3, *shape) for shape in infer_shapes(model)]
        assert all(value.dtype == np.float32 for value in made_values)
        assert np.array_equal(run_reference(model, made_values[0]), made_values[-1].reshape(3, -1))


def test_an_image_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(0)
    model = make_model_with_every_op(rng)
    x = draw_normal(rng, 3, *model.shape)
    np.testing.assert_allclose(run_reference(model, x)[1:2], run_reference(model, x[1:2]), rtol=1e-6)


def test_add_takes_both_inputs() -> None:
    x = draw_normal(np.random.default_rng(0), 2, 3, 3, 2)
    shift = Node("shift", "s", (0,), {"b": np.array([1, 2], np.float32)})
    model = make_model((3, 3, 2), shift, Node("add", "a", (0, 1), {}))
    assert np.array_equal(compute_values(model, x)[2], x + (x + np.array([1, 2], np.float32)))


def test_pixels_are_normalised_with_top_mean_and_std() -> None:
    model = BnnModel("m", (1, 1, 2), 255, (0.5, 0.25), (0.5, 0.125), ("a", "b"), (Node("relu", "", (0,), {}),))
    got = preprocess_pixels(model, np.array([255, 0], np.uint8).reshape(1, 1, 1, 2))
    assert got.dtype == np.float32
    assert got.ravel().tolist() == [1, -2]


@pytest.mark.parametrize(
    "images", [np.zeros((1, 7, 6, 3)), np.zeros((1, 6, 7, 3), np.float32), np.zeros((7, 6, 3), np.float32)]
)
def test_images_of_wrong_type_or_shape_are_rejected(images: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^images must be float32 \(n, 7, 6, 3\); got float"):
        run_reference(make_model_with_every_op(np.random.default_rng(0)), images)
