"""Stems are convolved with fewer multiplications, and nearly as exactly as by plain sums."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lcrbnn.engine import Model, Node, lib, reference
from lcrbnn.engine.format import to_bytes
from lcrbnn.errors import InputError
from tests.engine import made, normal, random_keys, window

try:
    lib.library()
except InputError as missing:
    if os.environ.get("CI"):
        raise
    pytest.skip(str(missing), allow_module_level=True)  # without a compiler; CI has one

RNG = np.random.default_rng
FEW = "float/points"
POOL = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
WINDOWS = {  # kernel, stride, padding (top, left, bottom, right), input (h, w, c), output channels
    "of a ResNet": ((7, 7), (2, 2), (3, 3, 3, 3), (45, 38, 3), 64),
    "three taps a phase": ((6, 6), (2, 2), (2, 2, 2, 2), (20, 70, 4), 17),
    "four taps a phase": ((8, 8), (2, 2), (0, 7, 1, 0), (30, 41, 2), 40),
    "one phase": ((4, 4), (1, 1), (1, 1, 2, 2), (9, 33, 5), 33),
    "one channel": ((16, 12), (3, 3), (5, 4, 5, 4), (40, 64, 1), 16),
    "padded more than wide": ((7, 7), (9, 2), (6, 6, 6, 6), (5, 26, 3), 16),
}


def stem(name: str, *, pool: bool = False) -> tuple[Model, np.ndarray]:
    kernel, stride, pad, shape, out = WINDOWS[name]
    rng = RNG(len(name))
    nodes = [Node("conv", "stem", (0,), random_keys(rng, "conv", shape[2], out, window(kernel, stride, pad)))]
    nodes.append(Node("affine", "norm", (1,), {"a": normal(rng, out), "b": normal(rng, out)}))
    if pool:
        nodes.append(Node("maxpool", "pool", (2,), POOL))
    return made(shape, *nodes), normal(rng, 3, *shape)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kernel", ["", "avx2", "scalar"])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_stem_is_what_the_reference_says(name: str, kernel: str, pool: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCRBNN_KERNEL", kernel)
    model, images = stem(name, pool=pool)
    engine, plain = (lib.Engine(to_bytes(model), fuse=fuse) for fuse in (True, False))
    assert plain.kernels[0] == FEW
    found, wanted = engine.run(images), reference.run(model, images)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    for other in (engine.run(images, threads=2), engine.run(images[1:], threads=3), plain.run(images)):
        assert np.array_equal(other, found[len(found) - len(other) :])


def test_a_number_that_is_none_stays_near() -> None:
    model, images = stem("of a ResNet")
    engine = lib.Engine(to_bytes(model))
    before = engine.value(images, 0)
    images[0, 20, 19, 1] = np.nan
    after = engine.value(images, 0)
    lost = np.isnan(after).any(3)
    kernel, stride, pad, *_ = WINDOWS["of a ResNet"]
    rows, columns = (
        [i for i in range(n) if 0 <= at + pad[0] - i * stride[0] < kernel[0]]
        for n, at in ((after.shape[1], 20), (after.shape[2], 19))
    )
    places = sorted({4 * (x // 4) + i for x in columns for i in range(4)} & set(range(after.shape[2])))
    assert lost[0][np.ix_(rows, columns)].all()
    assert {tuple(at) for at in np.argwhere(lost[0])} <= {(y, x) for y in rows for x in places}
    assert np.array_equal(after[1:], before[1:])
    assert np.array_equal(after[~lost], before[~lost])


@pytest.mark.parametrize(
    ("kernel", "stride", "shape", "out", "dilation", "groups"),
    [
        ((3, 3), (1, 1), (32, 32, 3), 16, (1, 1), 1),  # a short sum
        ((7, 7), (2, 2), (32, 32, 3), 8, (1, 1), 1),  # few channels
        ((7, 7), (2, 2), (32, 20, 3), 16, (1, 1), 1),  # a narrow map
        ((7, 7), (2, 2), (45, 45, 3), 16, (1, 2), 1),
        ((7, 7), (2, 2), (45, 45, 4), 16, (1, 1), 2),
        ((5, 5), (2, 2), (45, 45, 4), 16, (1, 1), 1),  # more than half of the products are left
        ((3, 3), (1, 1), (32, 32, 64), 16, (1, 1), 1),  # much memory
    ],
)
def test_others_are_plain_sums(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    shape: tuple[int, int, int],
    out: int,
    dilation: tuple[int, int],
    groups: int,
) -> None:
    keys = random_keys(RNG(0), "conv", shape[2], out, window(kernel, stride, (1, 1, 1, 1), dilation, groups))
    model = made(shape, Node("conv", "stem", (0,), keys))
    assert lib.Engine(to_bytes(model)).kernels[0] == "float"
