"""The compiled engine against the plain one, node by node, however it is run."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from lcrbnn.bits import pack
from lcrbnn.engine import Bits, lib, reference
from lcrbnn.engine.format import to_bytes
from tests.engine.graphs import OPS, Build, agree, chain, grown, need_engine

need_engine()


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(seed: int) -> None:
    build = grown(seed)
    agree(build.model(), build.images(3), kernel="scalar" if seed % 5 == 0 else None)


@pytest.mark.parametrize("op", OPS)
def test_each_op(op: str) -> None:
    for seed in range(4):
        build = Build(seed)
        build.random(op, 0)
        build.random("shift", 1)
        agree(build.model(), build.images(2))


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_signs_alone_are_compares_of_counts(pad_sign: int) -> None:
    build = Build(1, (6, 7, 40))
    keys = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    for channels in (40, 72, 24):
        out, last = {40: 72, 72: 24, 24: 16}[channels], len(build.shapes) - 1
        weight = Bits(pack(build.rng.random((out, 9 * channels)) < 0.5), 9 * channels)
        numbers = {"threshold": build.floats(channels), "a": build.floats(out), "b": build.floats(out)}
        made = build.add("bconv", (last,), (6, 7, out), weight=weight, pad_sign=pad_sign, **numbers, **keys)
        build.random("affine", made)
        build.random("hardtanh", made + 1)
    model = build.model()
    assert [k for k in lib.Engine(to_bytes(model)).kernels if k.endswith("/limits")]
    agree(model, build.images(3))


def test_odd_numbers_in_scales() -> None:
    """Infinite and NaN scales: a sign is still what the formula gives."""
    build = Build(3, (4, 4, 16))
    chain(build, "bconv", "affine", "bconv", "relu")
    for node in build.nodes[:2]:
        numbers = node.keys["a"]
        assert isinstance(numbers, np.ndarray)
        numbers[: min(3, len(numbers))] = [np.inf, np.nan, -0.0][: min(3, len(numbers))]
    agree(build.model(), build.images(2))


def test_numbers_that_are_none_pass() -> None:
    build = Build(4, (5, 5, 8))
    chain(build, "affine", "hardtanh", "relu", "prelu", "maxpool", "bconv")
    images = build.images(2)
    images[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    agree(build.model(), images)


@pytest.mark.parametrize("kernel", [None, "scalar"])
@pytest.mark.parametrize("op", ["conv", "wconv"])
def test_a_pool_takes_rows_as_they_are_made(op: str, kernel: str | None) -> None:
    for seed in range(4):
        build = Build(seed, (19, 23, 3))
        chain(build, op, "affine", "prelu")
        h, w, c = build.shapes[-1]
        keys = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
        pool = build.add("maxpool", (3,), ((h - 1) // 2 + 1, (w - 1) // 2 + 1, c), **keys)
        chain(build, "bconv")
        images, model = build.images(2), build.model()
        agree(model, images, kernel=kernel)
        engine, plain = (lib.Engine(to_bytes(model), fuse=fuse, kernel=kernel) for fuse in (True, False))
        assert engine.kernels[pool - 1] == "fused"
        images[0, 3, 4] = np.nan
        assert np.array_equal(engine.run(images, threads=4), plain.run(images), equal_nan=True)


@pytest.mark.parametrize("top", [1.0, 16.0, 255.0, 1.1])
def test_pixels_of_8_bits_are_scaled_to_the_top(top: float) -> None:
    build = grown(7)
    model = replace(build.model(), top=top, mean=(0.4,) * build.shapes[0][2], std=(0.3,) * build.shapes[0][2])
    pixels = build.rng.integers(0, 256, (3, *model.shape)).astype(np.uint8)
    engine = lib.Engine(to_bytes(model))
    wanted = ((pixels / 255 - 0.4) / 0.3).astype(np.float32)
    inputs = reference.numbers(model, reference.scale_pixels(model, pixels))
    np.testing.assert_allclose(inputs, wanted, rtol=0, atol=2e-6)
    assert np.array_equal(engine.run(pixels), engine.run(inputs))


def test_many_calls_at_a_time() -> None:
    build = grown(11)
    engine, images = lib.Engine(to_bytes(build.model())), build.images(5)
    want = engine.run(images)
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(engine.run(images, threads=1 + index % 3), want):
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
