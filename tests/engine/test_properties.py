"""Every kernel that this CPU has, over windows of all kinds: the sums and values of the reference.

Another processor's kernels, and memory behind their ends, are tools/kernels.py's.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrbnn.bits import pack
from lcrbnn.engine import Bits, Model, Node, lib, reference
from lcrbnn.engine.format import to_bytes
from lcrbnn.errors import InputError
from tests.engine import made, normal, random_keys, window
from tests.engine.graphs import POINTWISE, agree, need_engine

need_engine()

CHANNELS = 130  # past two words of 64 bits


def here(kernel: str) -> bool:
    one = made((1, 1, 1), Node("bconv", "", (0,), random_keys(np.random.default_rng(0), "bconv", 1, 1, window())))
    try:
        lib.Engine(to_bytes(one), kernel=kernel)
    except InputError:
        return False
    return True


KERNELS = [kernel for kernel in ("avx512", "avx2", "neon", "scalar") if here(kernel)]


NEEDS = {"avx512": {"avx512f", "avx512_vpopcntdq"}, "avx2": {"avx2", "fma"}, "neon": {"asimd"}}


def test_every_kernel_that_the_cpu_can_run_is_there() -> None:
    """One that disagrees with the scalar one is left out by the engine, and must not be by the tests."""
    about = Path("/proc/cpuinfo")
    flags = set(about.read_text().split()) if about.exists() else set()
    assert [kernel for kernel, needed in NEEDS.items() if needed <= flags] + ["scalar"] == KERNELS


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The binary kernel, and the loops over real numbers for the same instructions."""
    monkeypatch.setenv("LCRBNN_KERNEL", request.param)
    return request.param


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, int], dict[str, Any]]:
    """The size of a map and a window that fits it: odd sizes, strides, dilations, pads on each side of their own."""
    sides, keys = [], {key: [] for key in ("kernel", "stride", "dilation")}
    pads: list[list[int]] = []
    for _ in range(2):
        size, kernel, dilation = draw(st.integers(1, 11)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        span = dilation * (kernel - 1) + 1
        sides.append(max(size, span - before - after))
        keys["kernel"].append(kernel)
        keys["dilation"].append(dilation)
        keys["stride"].append(draw(st.integers(1, 3)))
        pads.append([before, after])
    (top, bottom), (left, right) = pads
    made = {key: tuple(value) for key, value in keys.items()}
    return (sides[0], sides[1]), made | {"pad": (top, left, bottom, right)}


@st.composite
def convolutions(draw: st.DrawFn, op: str) -> Model:
    """One convolution of 1 to 130 channels, and what an engine may fuse with it."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 8]))
    depth, out = draw(st.integers(1, CHANNELS // groups)), groups * draw(st.integers(1, 70 // groups))
    (h, w), slide = draw(windows())
    slide |= {"groups": groups}
    rng, channels = np.random.default_rng(draw(st.integers(0, 2**32))), groups * depth
    keys = random_keys(rng, op, channels, out, slide)
    nodes = [Node(op, "layer", (0,), keys)]
    if op == "bconv":
        keys["pad_sign"] = draw(st.sampled_from([-1, 0, 1]))
        if draw(st.integers(0, 4)) == 0:
            keys["threshold"] = "mean"
    if draw(st.booleans()):
        nodes.append(Node("hardtanh", "act", (1,), {}))
    if draw(st.booleans()):  # signs of what was made: compares of counts where nothing else reads it
        second = random_keys(rng, "bconv", out, draw(st.integers(1, 20)), window())
        nodes.append(Node("bconv", "next", (len(nodes),), second))
    return made((h, w, channels), *nodes, Node("mean", "", (len(nodes),), {}))


# One example of each is a whole convolution, four ways to run it and a file: enough of them in the time there is.
PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize("op", ["bconv", "wconv", "conv"])
def test_any_window(kernel: str, op: str) -> None:
    taken: set[int] = set()

    @PROPERTY
    @given(convolutions(op), st.integers(0, 2**32))
    def holds(model: Model, seed: int) -> None:
        taken.add(model.shape[2])
        agree(model, normal(np.random.default_rng(seed), 2, *model.shape), kernel=kernel)

    holds()
    assert len(taken) > 15  # many numbers of channels


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_every_number_of_channels(kernel: str, pad_sign: int) -> None:
    """1 to 130 in, and as many out the other way round, with a border of each kind."""
    rng = np.random.default_rng(0)
    for channels in range(1, CHANNELS + 1):
        slide = window((3, 3), (1, 1 + channels % 2), (1, 1, 1, 1))
        keys = random_keys(rng, "bconv", channels, CHANNELS + 1 - channels, slide) | {"pad_sign": pad_sign}
        node = Node("bconv", str(channels), (0,), keys)
        model = made((3, 5, channels), node, Node("mean", "", (1,), {}))
        agree(model, normal(rng, 1, *model.shape), kernel=kernel)


@pytest.mark.parametrize("stride", [1, 2])
def test_every_border(kernel: str, stride: int) -> None:
    """Pads of 0 to 2 on each side by itself, and each sign outside."""
    rng = np.random.default_rng(0)
    for *pad, sign in product(range(3), range(3), range(3), range(3), (-1, 0, 1)):
        keys = random_keys(rng, "bconv", 5, 3, window((3, 3), (stride, stride), tuple(pad))) | {"pad_sign": sign}
        model = made((4, 5, 5), Node("bconv", f"{pad} {sign}", (0,), keys), Node("mean", "", (1,), {}))
        images = normal(rng, 1, *model.shape)
        found = lib.Engine(to_bytes(model), kernel=kernel).accumulators(images, 0)
        assert np.array_equal(found, reference.accumulators(model.nodes[0], images)), (pad, sign)


ODD = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)


def test_the_sign_of_every_kind_of_number(kernel: str) -> None:
    """NaN is +1, minus zero is zero, and a threshold may be infinite: in each place of a vector."""
    rng = np.random.default_rng(0)
    for channels in (1, 3, 8, 16, 33, 64, 130):
        keys = random_keys(rng, "bconv", channels, 5, window((3, 3), (1, 1), (1, 1, 1, 1)))
        keys["threshold"] = rng.choice([*ODD[2:], np.float32(0.5)], channels).astype(np.float32)
        model = made((3, 5, channels), Node("bconv", "", (0,), keys), Node("mean", "", (1,), {}))
        images = rng.choice([*ODD, *normal(rng, 5)], (3, 3, 5, channels)).astype(np.float32)
        engine = lib.Engine(to_bytes(model), kernel=kernel)
        assert np.array_equal(engine.accumulators(images, 0), reference.accumulators(model.nodes[0], images))
        assert np.array_equal(engine.value(images, 0), reference.values(model, images)[1])


@st.composite
def pools(draw: st.DrawFn) -> Model:
    """A pool whose windows all see the map."""
    (h, w), slide = draw(windows())
    kernel, op = slide["kernel"], draw(st.sampled_from(["maxpool", "avgpool"]))
    top, left, bottom, right = slide["pad"]
    pad = (0, 0) if op == "avgpool" else (min(top, kernel[0] - 1), min(left, kernel[1] - 1))
    size, stride, after = (max(h, kernel[0]), max(w, kernel[1])), slide["stride"], [0, 0]
    for axis, wanted in enumerate((bottom, right)):  # as much as leaves the last window on the map
        after[axis] = min(wanted, kernel[axis] - 1)
        made_here = (size[axis] + pad[axis] + after[axis] - kernel[axis]) // stride[axis] + 1
        if (made_here - 1) * stride[axis] - pad[axis] >= size[axis]:
            after[axis] = 0
    keys = {"kernel": kernel, "stride": stride, "pad": (*pad, *after)}
    shape = (*size, draw(st.integers(1, CHANNELS)))
    return made(shape, Node(op, "pool", (0,), keys), Node("mean", "", (1,), {}))


def test_any_pool(kernel: str) -> None:
    @PROPERTY
    @given(pools(), st.integers(0, 2**32))
    def holds(model: Model, seed: int) -> None:
        agree(model, normal(np.random.default_rng(seed), 2, *model.shape), kernel=kernel)

    holds()


@pytest.mark.parametrize("op", [*POINTWISE, "subsample", "channels", "softmax"])
def test_any_number_of_channels_passes_each_op(kernel: str, op: str) -> None:
    """Loops over rows work by vectors, and the rest of a row is what they get wrong."""
    rng = np.random.default_rng(1)
    for channels in range(1, CHANNELS + 1):
        numbers = {"a": normal(rng, channels), "b": normal(rng, channels), "slope": normal(rng, channels)}
        keys: dict[str, Any] = {
            "affine": {"a": numbers["a"], "b": numbers["b"]},
            "prelu": {"slope": numbers["slope"]},
            "shift": {"b": numbers["b"]},
            "subsample": {"stride": (2, 3)},
            "channels": {"before": channels % 7, "after": channels % 5},
        }.get(op, {})
        inputs = (0, 0) if op == "add" else (0,)
        model = made((2, 3, channels), Node(op, "", inputs, keys), Node("mean", "", (1,), {}))
        agree(model, normal(rng, 2, *model.shape), kernel=kernel)


@pytest.mark.parametrize("taps", [1, 7, 64, 65, 130])
def test_every_reachable_sum_gives_the_sign_of_the_formula(kernel: str, taps: int) -> None:
    """Compares of counts against a * sum + b in float32, for sums of each size and signs on both sides of each."""
    rng = np.random.default_rng(taps)
    sums = np.arange(-taps, taps + 1, 2)
    images = np.where(np.arange(taps) < np.arange(taps + 1)[:, None], 1, -1).astype(np.float32)[None, None]
    a = np.repeat(np.float32([0.37, -0.37, 1e-3, -1e30, 0.0, np.inf, 1.0]), taps + 1)
    with np.errstate(invalid="ignore"):
        b = -a * np.tile(sums.astype(np.float32), 7)  # each sum once on the threshold of each slope, or next to it
    b = np.nextafter(b, rng.choice(np.float32([-np.inf, np.inf]), len(b)), where=rng.random(len(b)) < 0.5, out=b)
    first = {"weight": Bits(pack(np.ones((len(a), taps))), taps), "a": a, "b": b.astype(np.float32), **window()}
    first |= {"threshold": np.zeros(taps, np.float32), "pad_sign": 0}
    second = random_keys(rng, "bconv", len(a), len(a), window(groups=len(a))) | {"threshold": normal(rng, len(a)) / 99}
    model = made((1, taps + 1, taps), Node("bconv", "sums", (0,), first), Node("bconv", "signs", (1,), second))
    engine = lib.Engine(to_bytes(model), kernel=kernel)
    assert engine.kernels[0] == f"{kernel}/limits"
    assert np.array_equal(engine.accumulators(images, 0)[0, 0, :, 0], sums)
    assert np.array_equal(engine.run(images), reference.run(model, images))
