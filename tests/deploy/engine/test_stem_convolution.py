"""The fast convolution of stems needs fewer multiplications and is almost as exact as plain sums."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, Node
from lcrbnn.errors import InputError
from tests.deploy.engine.small_models import draw_attributes, draw_normal, make_model, make_window

try:
    lib.load_library()
except InputError as missing:
    if os.environ.get("CI"):
        raise
    pytest.skip(str(missing), allow_module_level=True)  # CI has a compiler

RNG = np.random.default_rng
POINTS_KERNEL = "float/points"
POOL = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
WINDOWS = {  # kernel, stride, padding (top, left, bottom, right), input (h, w, c), output channels
    "of a ResNet": ((7, 7), (2, 2), (3, 3, 3, 3), (45, 38, 3), 64),
    "three taps a phase": ((6, 6), (2, 2), (2, 2, 2, 2), (20, 70, 4), 17),
    "four taps a phase": ((8, 8), (2, 2), (0, 7, 1, 0), (30, 41, 2), 40),
    "one phase": ((4, 4), (1, 1), (1, 1, 2, 2), (9, 33, 5), 33),
    "one channel": ((16, 12), (3, 3), (5, 4, 5, 4), (40, 64, 1), 16),
    "padded more than wide": ((7, 7), (9, 2), (6, 6, 6, 6), (5, 26, 3), 16),
}


def make_stem(name: str, *, pool: bool = False) -> tuple[BnnModel, np.ndarray]:
    kernel, stride, pad, shape, out = WINDOWS[name]
    rng = RNG(len(name))
    nodes = [Node("conv", "stem", (0,), draw_attributes(rng, "conv", shape[2], out, make_window(kernel, stride, pad)))]
    nodes.append(Node("affine", "norm", (1,), {"a": draw_normal(rng, out), "b": draw_normal(rng, out)}))
    if pool:
        nodes.append(Node("maxpool", "pool", (2,), POOL))
    return make_model(shape, *nodes), draw_normal(rng, 3, *shape)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kernel", ["", "avx2", "scalar"])
@pytest.mark.parametrize("name", WINDOWS)
def test_stems_equal_the_reference(name: str, kernel: str, pool: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCRBNN_KERNEL", kernel)
    model, images = make_stem(name, pool=pool)
    engine, unfused = (lib.Engine(to_bytes(model), fuse=fuse) for fuse in (True, False))
    assert unfused.kernels[0] == POINTS_KERNEL
    logits, expected = engine.run(images), reference.run_reference(model, images)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
    for other_logits in (engine.run(images, threads=2), engine.run(images[1:], threads=3), unfused.run(images)):
        assert np.array_equal(other_logits, logits[len(logits) - len(other_logits) :])


def test_nan_affects_only_nearby_outputs() -> None:
    model, images = make_stem("of a ResNet")
    engine = lib.Engine(to_bytes(model))
    before = engine.value(images, 0)
    images[0, 20, 19, 1] = np.nan
    after = engine.value(images, 0)
    is_nan = np.isnan(after).any(3)
    kernel, stride, pad, *_ = WINDOWS["of a ResNet"]
    rows, columns = (
        [i for i in range(n) if 0 <= at + pad[0] - i * stride[0] < kernel[0]]
        for n, at in ((after.shape[1], 20), (after.shape[2], 19))
    )
    affected_columns = sorted({4 * (x // 4) + i for x in columns for i in range(4)} & set(range(after.shape[2])))
    assert is_nan[0][np.ix_(rows, columns)].all()
    assert {tuple(at) for at in np.argwhere(is_nan[0])} <= {(y, x) for y in rows for x in affected_columns}
    assert np.array_equal(after[1:], before[1:])
    assert np.array_equal(after[~is_nan], before[~is_nan])


@pytest.mark.parametrize(
    ("kernel", "stride", "shape", "out", "dilation", "groups"),
    [
        ((3, 3), (1, 1), (32, 32, 3), 16, (1, 1), 1),  # a short sum
        ((7, 7), (2, 2), (32, 32, 3), 8, (1, 1), 1),  # few channels
        ((7, 7), (2, 2), (32, 20, 3), 16, (1, 1), 1),  # a narrow map
        ((7, 7), (2, 2), (45, 45, 3), 16, (1, 2), 1),
        ((7, 7), (2, 2), (45, 45, 4), 16, (1, 1), 2),
        ((5, 5), (2, 2), (45, 45, 4), 16, (1, 1), 1),  # saves less than half of the multiplications
        ((3, 3), (1, 1), (32, 32, 64), 16, (1, 1), 1),  # needs too much memory
    ],
)
def test_other_convolutions_use_plain_sums(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    shape: tuple[int, int, int],
    out: int,
    dilation: tuple[int, int],
    groups: int,
) -> None:
    keys = draw_attributes(RNG(0), "conv", shape[2], out, make_window(kernel, stride, (1, 1, 1, 1), dilation, groups))
    model = make_model(shape, Node("conv", "stem", (0,), keys))
    assert lib.Engine(to_bytes(model)).kernels[0] == "float"
