"""Every kernel that this CPU supports equals the reference, for windows of all kinds.

Another processor's kernels, and memory behind their ends, are tools/native/engine_kernels.py's.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.errors import InputError
from tests.deploy.engine.random_graphs import ELEMENTWISE_OPS, assert_engine_equals_reference, skip_without_engine
from tests.deploy.engine.small_models import draw_attributes, draw_normal, make_model, make_window

skip_without_engine()

CHANNELS = 130  # more than two words of 64 bits


def is_available(kernel: str) -> bool:
    model = make_model(
        (1, 1, 1), Node("bconv", "", (0,), draw_attributes(np.random.default_rng(0), "bconv", 1, 1, make_window()))
    )
    try:
        lib.Engine(to_bytes(model), kernel=kernel)
    except InputError:
        return False
    return True


AVAILABLE_KERNELS = [kernel for kernel in ("avx512", "avx2", "neon", "scalar") if is_available(kernel)]


REQUIRED_CPU_FLAGS = {"avx512": {"avx512f", "avx512_vpopcntdq"}, "avx2": {"avx2", "fma"}, "neon": {"asimd"}}


def test_every_kernel_that_the_cpu_supports_is_available() -> None:
    """The engine disables a kernel that disagrees with the scalar one; the tests must not skip it silently."""
    about = Path("/proc/cpuinfo")
    flags = set(about.read_text().split()) if about.exists() else set()
    assert [kernel for kernel, needed in REQUIRED_CPU_FLAGS.items() if needed <= flags] + [
        "scalar"
    ] == AVAILABLE_KERNELS


@pytest.fixture(params=AVAILABLE_KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the binary kernel and the float loops of one instruction set."""
    monkeypatch.setenv("LCRBNN_KERNEL", request.param)
    return request.param


@st.composite
def draw_windows(draw: st.DrawFn) -> tuple[tuple[int, int], dict[str, Any]]:
    """Draw the size of a map and a window that fits it, with separate padding on each side."""
    sides, values = [], {key: [] for key in ("kernel", "stride", "dilation")}
    pads: list[list[int]] = []
    for _ in range(2):
        size, kernel, dilation = draw(st.integers(1, 11)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        span = dilation * (kernel - 1) + 1
        sides.append(max(size, span - before - after))
        values["kernel"].append(kernel)
        values["dilation"].append(dilation)
        values["stride"].append(draw(st.integers(1, 3)))
        pads.append([before, after])
    (top, bottom), (left, right) = pads
    window = {key: tuple(value) for key, value in values.items()}
    return (sides[0], sides[1]), window | {"pad": (top, left, bottom, right)}


@st.composite
def draw_convolutions(draw: st.DrawFn, op: str) -> BnnModel:
    """Draw a convolution of 1 to 130 channels, followed by nodes that an engine may fuse with it."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 8]))
    depth, out = draw(st.integers(1, CHANNELS // groups)), groups * draw(st.integers(1, 70 // groups))
    (h, w), slide = draw(draw_windows())
    slide |= {"groups": groups}
    rng, channels = np.random.default_rng(draw(st.integers(0, 2**32))), groups * depth
    keys = draw_attributes(rng, op, channels, out, slide)
    nodes = [Node(op, "layer", (0,), keys)]
    if op == "bconv":
        keys["pad_sign"] = draw(st.sampled_from([-1, 0, 1]))
        if draw(st.integers(0, 4)) == 0:
            keys["threshold"] = "mean"
    if draw(st.booleans()):
        nodes.append(Node("hardtanh", "act", (1,), {}))
    if draw(st.booleans()):  # if nothing else reads the output, integer limits replace the signs
        second = draw_attributes(rng, "bconv", out, draw(st.integers(1, 20)), make_window())
        nodes.append(Node("bconv", "next", (len(nodes),), second))
    return make_model((h, w, channels), *nodes, Node("mean", "", (len(nodes),), {}))


# Each example runs a whole convolution in four modes, so there are only 100 of them.
PROPERTY_SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize("op", ["bconv", "wconv", "conv"])
def test_convolutions_with_any_window_equal_the_reference(kernel: str, op: str) -> None:
    taken: set[int] = set()

    @PROPERTY_SETTINGS
    @given(draw_convolutions(op), st.integers(0, 2**32))
    def holds(model: BnnModel, seed: int) -> None:
        taken.add(model.shape[2])
        assert_engine_equals_reference(model, draw_normal(np.random.default_rng(seed), 2, *model.shape), kernel=kernel)

    holds()
    assert len(taken) > 15  # many channel counts were drawn


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_bconv_with_1_to_130_channels_equals_the_reference(kernel: str, pad_sign: int) -> None:
    """Use 1 to 130 input channels, 130 to 1 output channels, and each padding sign."""
    rng = np.random.default_rng(0)
    for channels in range(1, CHANNELS + 1):
        slide = make_window((3, 3), (1, 1 + channels % 2), (1, 1, 1, 1))
        keys = draw_attributes(rng, "bconv", channels, CHANNELS + 1 - channels, slide) | {"pad_sign": pad_sign}
        node = Node("bconv", str(channels), (0,), keys)
        model = make_model((3, 5, channels), node, Node("mean", "", (1,), {}))
        assert_engine_equals_reference(model, draw_normal(rng, 1, *model.shape), kernel=kernel)


@pytest.mark.parametrize("stride", [1, 2])
def test_bconv_with_every_padding_equals_the_reference(kernel: str, stride: int) -> None:
    """Use paddings of 0 to 2 on each side separately, and each padding sign."""
    rng = np.random.default_rng(0)
    for *pad, sign in product(range(3), range(3), range(3), range(3), (-1, 0, 1)):
        keys = draw_attributes(rng, "bconv", 5, 3, make_window((3, 3), (stride, stride), tuple(pad))) | {
            "pad_sign": sign
        }
        model = make_model((4, 5, 5), Node("bconv", f"{pad} {sign}", (0,), keys), Node("mean", "", (1,), {}))
        images = draw_normal(rng, 1, *model.shape)
        sums = lib.Engine(to_bytes(model), kernel=kernel).accumulators(images, 0)
        assert np.array_equal(sums, reference.compute_accumulators(model.nodes[0], images)), (pad, sign)


SPECIAL_NUMBERS = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)


def test_signs_of_special_numbers_equal_the_reference(kernel: str) -> None:
    """NaN has the sign +1, minus zero counts as zero, and thresholds may be infinite, at each position of a vector."""
    rng = np.random.default_rng(0)
    for channels in (1, 3, 8, 16, 33, 64, 130):
        keys = draw_attributes(rng, "bconv", channels, 5, make_window((3, 3), (1, 1), (1, 1, 1, 1)))
        keys["threshold"] = rng.choice([*SPECIAL_NUMBERS[2:], np.float32(0.5)], channels).astype(np.float32)
        model = make_model((3, 5, channels), Node("bconv", "", (0,), keys), Node("mean", "", (1,), {}))
        images = rng.choice([*SPECIAL_NUMBERS, *draw_normal(rng, 5)], (3, 3, 5, channels)).astype(np.float32)
        engine = lib.Engine(to_bytes(model), kernel=kernel)
        assert np.array_equal(engine.accumulators(images, 0), reference.compute_accumulators(model.nodes[0], images))
        assert np.array_equal(engine.value(images, 0), reference.compute_values(model, images)[1])


@st.composite
def draw_pools(draw: st.DrawFn) -> BnnModel:
    """Draw a pool whose windows all overlap the map."""
    (h, w), slide = draw(draw_windows())
    kernel, op = slide["kernel"], draw(st.sampled_from(["maxpool", "avgpool"]))
    top, left, bottom, right = slide["pad"]
    pad = (0, 0) if op == "avgpool" else (min(top, kernel[0] - 1), min(left, kernel[1] - 1))
    size, stride, after = (max(h, kernel[0]), max(w, kernel[1])), slide["stride"], [0, 0]
    for axis, trailing_pad in enumerate((bottom, right)):  # the last window must overlap the map
        after[axis] = min(trailing_pad, kernel[axis] - 1)
        output_size = (size[axis] + pad[axis] + after[axis] - kernel[axis]) // stride[axis] + 1
        if (output_size - 1) * stride[axis] - pad[axis] >= size[axis]:
            after[axis] = 0
    keys = {"kernel": kernel, "stride": stride, "pad": (*pad, *after)}
    shape = (*size, draw(st.integers(1, CHANNELS)))
    return make_model(shape, Node(op, "pool", (0,), keys), Node("mean", "", (1,), {}))


def test_pools_with_any_window_equal_the_reference(kernel: str) -> None:
    @PROPERTY_SETTINGS
    @given(draw_pools(), st.integers(0, 2**32))
    def holds(model: BnnModel, seed: int) -> None:
        assert_engine_equals_reference(model, draw_normal(np.random.default_rng(seed), 2, *model.shape), kernel=kernel)

    holds()


@pytest.mark.parametrize("op", [*ELEMENTWISE_OPS, "subsample", "channels", "softmax"])
def test_ops_with_1_to_130_channels_equal_the_reference(kernel: str, op: str) -> None:
    """Row loops use vectors, so errors are most likely in the remainder of a row."""
    rng = np.random.default_rng(1)
    for channels in range(1, CHANNELS + 1):
        numbers = {
            "a": draw_normal(rng, channels),
            "b": draw_normal(rng, channels),
            "slope": draw_normal(rng, channels),
        }
        keys: dict[str, Any] = {
            "affine": {"a": numbers["a"], "b": numbers["b"]},
            "prelu": {"slope": numbers["slope"]},
            "shift": {"b": numbers["b"]},
            "subsample": {"stride": (2, 3)},
            "channels": {"before": channels % 7, "after": channels % 5},
        }.get(op, {})
        inputs = (0, 0) if op == "add" else (0,)
        model = make_model((2, 3, channels), Node(op, "", inputs, keys), Node("mean", "", (1,), {}))
        assert_engine_equals_reference(model, draw_normal(rng, 2, *model.shape), kernel=kernel)


@pytest.mark.parametrize("taps", [1, 7, 64, 65, 130])
def test_every_reachable_sum_gives_the_sign_of_the_formula(kernel: str, taps: int) -> None:
    """Integer limits equal the signs of a * sum + b in float32, for sums on both sides of each threshold."""
    rng = np.random.default_rng(taps)
    sums = np.arange(-taps, taps + 1, 2)
    images = np.where(np.arange(taps) < np.arange(taps + 1)[:, None], 1, -1).astype(np.float32)[None, None]
    a = np.repeat(np.float32([0.37, -0.37, 1e-3, -1e30, 0.0, np.inf, 1.0]), taps + 1)
    with np.errstate(invalid="ignore"):
        b = -a * np.tile(sums.astype(np.float32), 7)  # each sum is at or next to the threshold once per slope
    b = np.nextafter(b, rng.choice(np.float32([-np.inf, np.inf]), len(b)), where=rng.random(len(b)) < 0.5, out=b)
    first = {
        "weight": PackedSigns(pack_signs(np.ones((len(a), taps))), taps),
        "a": a,
        "b": b.astype(np.float32),
        **make_window(),
    }
    first |= {"threshold": np.zeros(taps, np.float32), "pad_sign": 0}
    second = draw_attributes(rng, "bconv", len(a), len(a), make_window(groups=len(a))) | {
        "threshold": draw_normal(rng, len(a)) / 99
    }
    model = make_model((1, taps + 1, taps), Node("bconv", "sums", (0,), first), Node("bconv", "signs", (1,), second))
    engine = lib.Engine(to_bytes(model), kernel=kernel)
    assert engine.kernels[0] == f"{kernel}/limits"
    assert np.array_equal(engine.accumulators(images, 0)[0, 0, :, 0], sums)
    assert np.array_equal(engine.run(images), reference.run_reference(model, images))
