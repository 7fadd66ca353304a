"""The reference against torch, against loops over single numbers, and against closed forms."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lcrbnn.bits import pack, unpack
from lcrbnn.engine.check import shapes
from lcrbnn.engine.format import Bits, Model, Node
from lcrbnn.engine.reference import accumulators, numbers, run, signs, values
from lcrbnn.errors import InputError
from tests.engine import every_op, made, normal, random_keys, random_window, resnet20, window

CHANNELS = [*range(1, 21), *range(63, 67)]


def alone(op: str, keys: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """What a node makes of an input."""
    return values(made(x.shape[1:], Node(op, op, (0,), keys)), x)[1]


def torch_conv(keys: dict[str, Any], x: np.ndarray, weight: np.ndarray, outside: float = 0) -> np.ndarray:
    """The convolution of torch in double precision, channels last; weight is [out, kh, kw, in/groups]."""
    top, left, bottom, right = keys["pad"]
    image = F.pad(torch.from_numpy(x).double().permute(0, 3, 1, 2), (left, right, top, bottom), value=outside)
    kernel = torch.from_numpy(weight).double().permute(0, 3, 1, 2)
    slide = {key: keys[key] for key in ("stride", "dilation", "groups")}
    return F.conv2d(image, kernel, **slide).permute(0, 2, 3, 1).numpy()


def cases(channels: int) -> tuple[np.random.Generator, int, dict[str, Any], np.ndarray]:
    """A window, a number of outputs and images of odd sizes, drawn for a number of channels."""
    rng = np.random.default_rng(channels)
    slide = random_window(rng, channels)
    h, w = (int(v) for v in rng.integers(5, 10, 2))
    return rng, slide["groups"] * int(rng.integers(1, 4)), slide, normal(rng, 2, h, w, channels)


def real_weight(keys: dict[str, Any], x: np.ndarray) -> np.ndarray:
    depth = x.shape[3] // keys["groups"]
    return unpack(*keys["weight"]).reshape(-1, *keys["kernel"], depth).astype(np.float32)


@pytest.mark.parametrize("channels", CHANNELS)
def test_conv_is_that_of_torch(channels: int) -> None:
    rng, out, slide, x = cases(channels)
    keys = random_keys(rng, "conv", channels, out, slide)
    plain = {key: value for key, value in keys.items() if key != "bias"}
    want = torch_conv(keys, x, keys["weight"])
    np.testing.assert_allclose(alone("conv", plain, x), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(alone("conv", keys, x), want + keys["bias"], rtol=1e-6, atol=1e-6)


def test_half_weights_are_widened_exactly() -> None:
    rng, out, slide, x = cases(6)
    keys = random_keys(rng, "conv", 6, out, slide)
    half = keys["weight"].astype(np.float16)
    wide = alone("conv", keys | {"weight": half.astype(np.float32)}, x)
    assert np.array_equal(alone("conv", keys | {"weight": half}, x), wide)
    assert not np.array_equal(alone("conv", keys, x), wide)


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
@pytest.mark.parametrize("channels", CHANNELS)
def test_sums_of_bconv_are_those_of_torch_to_the_bit(channels: int, pad_sign: int) -> None:
    rng, out, slide, x = cases(channels)
    keys = random_keys(rng, "bconv", channels, out, slide) | {"pad_sign": pad_sign}
    seen = np.where(x < keys["threshold"], np.float32(-1), np.float32(1))
    got = accumulators(Node("bconv", "", (0,), keys), x)
    assert got.dtype == np.int32
    assert np.array_equal(got, torch_conv(keys, seen, real_weight(keys, x), pad_sign))


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_sums_of_bconv_are_those_of_loops_over_bits(pad_sign: int) -> None:
    """A slow twin that reads the file's bytes: row o, bit (ky·kw + kx)·depth + channel, the lowest first."""
    rng = np.random.default_rng(1)
    slide = window((2, 3), (2, 1), (1, 0, 2, 1), (1, 2), 2)
    keys = random_keys(rng, "bconv", 6, 4, slide) | {"pad_sign": pad_sign}
    x = normal(rng, 2, 5, 7, 6)
    got = accumulators(Node("bconv", "", (0,), keys), x)
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


def test_sums_of_many_channels_do_not_round() -> None:
    """All signs agree but one, at a length past the range of a half or a bfloat16."""
    n = 2**20 - 1
    weight = np.ones((1, n))
    weight[0, 7] = -1
    keys = {"weight": Bits(pack(weight), n), "threshold": np.zeros(n, np.float32), "pad_sign": 0, **window()}
    assert accumulators(Node("bconv", "", (0,), keys), np.ones((1, 1, 1, n), np.float32)).item() == n - 2


def test_signs_below_the_threshold_are_minus_one_and_all_others_plus_one() -> None:
    inf, nan, tiny = np.inf, np.nan, np.float32(1e-45)
    x = np.array([0.0, -0.0, nan, -tiny, 0.5, inf, -inf, inf], np.float32).reshape(1, 1, 1, 8)
    threshold = np.array([0.0, 0.0, 0.0, 0.0, 0.5, inf, -inf, -inf], np.float32)
    got = signs(Node("bconv", "", (0,), {"threshold": threshold}), x)
    assert got.dtype == np.int8
    assert got.ravel().tolist() == [1, 1, 1, -1, 1, 1, 1, 1]
    assert signs(Node("bconv", "", (0,), {"threshold": -threshold}), x).ravel()[6] == -1


def test_signs_by_the_mean_look_at_each_image_alone() -> None:
    x = np.array([[1, 2, 3, 6], [-1, -1, -1, -1]], np.float32).reshape(2, 2, 1, 2)
    got = signs(Node("bconv", "", (0,), {"threshold": "mean"}), x)
    assert got.reshape(2, 4).tolist() == [[-1, -1, 1, 1], [1, 1, 1, 1]]


def test_the_mean_of_signs_is_summed_in_double_precision() -> None:
    """A float32 sum drops ones that follow 2^24, by any of the usual orders: its mean falls to 16401 or below."""
    x = np.ones((1, 1, 1, 1024), np.float32)
    x[..., 0], x[..., -1] = 2**24, 16401
    assert (2**24 + 1022 + 16401) / 1024 > 16401
    assert x.mean(dtype=np.float32) <= 16401
    assert signs(Node("bconv", "", (0,), {"threshold": "mean"}), x).ravel()[-1] == -1


@pytest.mark.parametrize("width", [None, 1, 3])
def test_scales_of_bconv_round_after_each_operation(width: int | None) -> None:
    """A slow twin in exact fractions of two: double precision holds each product of float32 exactly."""
    rng = np.random.default_rng(3)
    keys = random_keys(rng, "bconv", 5, 3, window((3, 3), pad=(1, 1, 1, 1)))
    x = normal(rng, 2, 6, 7, 5)
    if width:
        keys["spatial"] = normal(rng, 6, 7, width)
    acc = accumulators(Node("bconv", "", (0,), keys), x)
    got = alone("bconv", keys, x)
    fused = 0
    for n, y, z, o in product(*map(range, acc.shape)):
        value = np.float64(acc[n, y, z, o])
        if width:
            value = np.float64(np.float32(np.float64(keys["spatial"][y, z, o % width]) * value))
        scaled = np.float64(keys["a"][o]) * value
        assert got[n, y, z, o] == np.float32(np.float64(np.float32(scaled)) + np.float64(keys["b"][o]))
        fused += got[n, y, z, o] != np.float32(scaled + np.float64(keys["b"][o]))
    assert fused  # the numbers can tell one rounding from two


@pytest.mark.parametrize("channels", CHANNELS)
def test_wconv_is_that_of_torch(channels: int) -> None:
    rng, out, slide, x = cases(channels)
    keys = random_keys(rng, "wconv", channels, out, slide)
    total = torch_conv(keys, x, real_weight(keys, x))
    np.testing.assert_allclose(alone("wconv", keys, x), keys["a"] * total + keys["b"], rtol=1e-5, atol=1e-5)
    for width in (1, out):
        spatial = normal(rng, *total.shape[1:3], width)
        want = keys["a"] * (spatial * total) + keys["b"]
        np.testing.assert_allclose(alone("wconv", keys | {"spatial": spatial}, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_maxpool_is_that_of_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, stride, low, high = (
        tuple(int(v) for v in rng.integers(a, b, 2)) for a, b in ((2, 5), (1, 4), (0, 2), (0, 2))
    )
    x = normal(rng, 2, *rng.integers(5, 10, 2), int(rng.integers(1, 7))) - 3  # all are negative: a pad of 0 would show
    got = alone("maxpool", {"kernel": kernel, "stride": stride, "pad": (*low, *high)}, x)
    padded = F.pad(torch.from_numpy(x).permute(0, 3, 1, 2), (low[1], high[1], low[0], high[0]), value=-torch.inf)
    assert np.array_equal(got, F.max_pool2d(padded, kernel, stride).permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize(("size", "kernel", "stride"), [(6, 2, 2), (7, 2, 2), (7, 3, 2), (8, 3, 3), (5, 5, 1)])
def test_avgpool_is_that_of_torch_also_over_the_edge(size: int, kernel: int, stride: int) -> None:
    x = normal(np.random.default_rng(size), 2, size, size + 1, 3)
    over = [-(-(side - kernel) // stride) * stride + kernel - side for side in x.shape[1:3]]
    image = torch.from_numpy(x).permute(0, 3, 1, 2)
    got = alone("avgpool", {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (0, 0, *over)}, x)
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
def test_ops_of_a_line(op: str, keys: dict[str, Any], want: list[list[float]]) -> None:
    """On three pixels of two channels: (-1, 0), (0, 1), (1, 3)."""
    keys = {key: np.array(value, np.float32) if isinstance(value, list) else value for key, value in keys.items()}
    x = np.array([[-1, 0], [0, 1], [1, 3]], np.float32).reshape(1, 3, 1, 2)
    got = alone(op, keys, x)
    assert got.dtype == np.float32
    assert got[0, :, 0].tolist() == np.array(want, np.float32).tolist()


def test_activations_are_those_of_torch() -> None:
    x = normal(np.random.default_rng(0), 2, 3, 3, 5)
    image, slope = torch.from_numpy(x).permute(0, 3, 1, 2), normal(np.random.default_rng(1), 5)
    for op, keys, want in (
        ("prelu", {"slope": slope}, F.prelu(image, torch.from_numpy(slope))),
        ("relu", {}, F.relu(image)),
        ("hardtanh", {}, F.hardtanh(image)),
    ):
        assert np.array_equal(alone(op, keys, x), want.permute(0, 2, 3, 1).numpy()), op


def test_softmax_is_over_channels_and_does_not_overflow() -> None:
    x = normal(np.random.default_rng(0), 2, 3, 3, 5) * 5 + 1000
    np.testing.assert_allclose(alone("softmax", {}, x), torch.from_numpy(x).double().softmax(3).numpy(), rtol=1e-6)


def test_every_value_has_the_shape_that_the_check_says() -> None:
    rng = np.random.default_rng(0)
    for model in (every_op(rng), resnet20(rng)):
        made_values = values(model, normal(rng, 3, *model.shape))
        assert [value.shape for value in made_values] == [(3, *shape) for shape in shapes(model)]
        assert all(value.dtype == np.float32 for value in made_values)
        assert np.array_equal(run(model, made_values[0]), made_values[-1].reshape(3, -1))


def test_an_image_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(0)
    model = every_op(rng)
    x = normal(rng, 3, *model.shape)
    np.testing.assert_allclose(run(model, x)[1:2], run(model, x[1:2]), rtol=1e-6)


def test_add_takes_both_inputs() -> None:
    x = normal(np.random.default_rng(0), 2, 3, 3, 2)
    shift = Node("shift", "s", (0,), {"b": np.array([1, 2], np.float32)})
    model = made((3, 3, 2), shift, Node("add", "a", (0, 1), {}))
    assert np.array_equal(values(model, x)[2], x + (x + np.array([1, 2], np.float32)))


def test_pixels_become_numbers_by_top_mean_and_std() -> None:
    model = Model("m", (1, 1, 2), 255, (0.5, 0.25), (0.5, 0.125), ("a", "b"), (Node("relu", "", (0,), {}),))
    got = numbers(model, np.array([255, 0], np.uint8).reshape(1, 1, 1, 2))
    assert got.dtype == np.float32
    assert got.ravel().tolist() == [1, -2]


@pytest.mark.parametrize(
    "images", [np.zeros((1, 7, 6, 3)), np.zeros((1, 6, 7, 3), np.float32), np.zeros((7, 6, 3), np.float32)]
)
def test_images_of_another_kind_are_refused(images: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^images are float32 \(n, 7, 6, 3\); got float"):
        run(every_op(np.random.default_rng(0)), images)
