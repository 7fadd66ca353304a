"""The compiled engine equals the reference for every node, in every mode."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import PackedSigns
from tests.deploy.engine.random_graphs import (
    OP_NAMES,
    RandomGraph,
    add_chain,
    assert_engine_equals_reference,
    grow_random_graph,
    skip_without_engine,
)

skip_without_engine()


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_equal_the_reference(seed: int) -> None:
    build = grow_random_graph(seed)
    assert_engine_equals_reference(
        build.build_model(), build.draw_images(3), kernel="scalar" if seed % 5 == 0 else None
    )


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_of_version_2_equal_the_reference(seed: int) -> None:
    build = grow_random_graph(1000 + seed, version=2)
    model = build.build_model(num_outputs=seed % 4)
    assert_engine_equals_reference(model, build.draw_images(3), kernel=[None, None, "scalar"][seed % 3])


@pytest.mark.parametrize("op", OP_NAMES)
def test_each_op_equals_the_reference(op: str) -> None:
    for seed in range(4):
        build = RandomGraph(seed)
        build.add_random_node(op, 0)
        build.add_random_node("shift", 1)
        assert_engine_equals_reference(build.build_model(), build.draw_images(2))


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_layers_read_only_for_signs_use_integer_limits(pad_sign: int) -> None:
    build = RandomGraph(1, (6, 7, 40))
    keys = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    for channels in (40, 72, 24):
        out, last = {40: 72, 72: 24, 24: 16}[channels], len(build.shapes) - 1
        weight = PackedSigns(pack_signs(build.rng.random((out, 9 * channels)) < 0.5), 9 * channels)
        numbers = {"threshold": build.draw_floats(channels), "a": build.draw_floats(out), "b": build.draw_floats(out)}
        bconv = build.add_node("bconv", (last,), (6, 7, out), weight=weight, pad_sign=pad_sign, **numbers, **keys)
        build.add_random_node("affine", bconv)
        build.add_random_node("hardtanh", bconv + 1)
    model = build.build_model()
    assert [k for k in lib.Engine(to_bytes(model)).kernels if k.endswith("/limits")]
    assert_engine_equals_reference(model, build.draw_images(3))


def test_infinite_and_nan_scales_give_the_signs_of_the_formula() -> None:
    """With infinite and NaN scales, the signs are still those of the formula."""
    build = RandomGraph(3, (4, 4, 16))
    add_chain(build, "bconv", "affine", "bconv", "relu")
    for node in build.nodes[:2]:
        numbers = node.attributes["a"]
        assert isinstance(numbers, np.ndarray)
        numbers[: min(3, len(numbers))] = [np.inf, np.nan, -0.0][: min(3, len(numbers))]
    assert_engine_equals_reference(build.build_model(), build.draw_images(2))


def test_nan_and_infinity_propagate() -> None:
    build = RandomGraph(4, (5, 5, 8))
    add_chain(build, "affine", "hardtanh", "relu", "prelu", "maxpool", "bconv")
    images = build.draw_images(2)
    images[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    assert_engine_equals_reference(build.build_model(), images)


@pytest.mark.parametrize("kernel", [None, "scalar"])
@pytest.mark.parametrize("op", ["conv", "wconv"])
def test_a_pool_fuses_with_the_convolution_before_it(op: str, kernel: str | None) -> None:
    for seed in range(4):
        build = RandomGraph(seed, (19, 23, 3))
        add_chain(build, op, "affine", "prelu")
        h, w, c = build.shapes[-1]
        keys = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
        pool = build.add_node("maxpool", (3,), ((h - 1) // 2 + 1, (w - 1) // 2 + 1, c), **keys)
        add_chain(build, "bconv")
        images, model = build.draw_images(2), build.build_model()
        assert_engine_equals_reference(model, images, kernel=kernel)
        engine, plain = (lib.Engine(to_bytes(model), fuse=fuse, kernel=kernel) for fuse in (True, False))
        assert engine.kernels[pool - 1] == "fused"
        images[0, 3, 4] = np.nan
        assert np.array_equal(engine.run(images, threads=4), plain.run(images), equal_nan=True)


@pytest.mark.parametrize("top", [1.0, 16.0, 255.0, 1.1])
def test_pixels_of_8_bits_are_scaled_to_the_top(top: float) -> None:
    build = grow_random_graph(7)
    model = replace(build.build_model(), top=top, mean=(0.4,) * build.shapes[0][2], std=(0.3,) * build.shapes[0][2])
    pixels = build.rng.integers(0, 256, (3, *model.shape)).astype(np.uint8)
    engine = lib.Engine(to_bytes(model))
    expected = ((pixels / 255 - 0.4) / 0.3).astype(np.float32)
    inputs = reference.preprocess_pixels(model, reference.scale_pixels(model, pixels))
    np.testing.assert_allclose(inputs, expected, rtol=0, atol=2e-6)
    assert np.array_equal(engine.run(pixels), engine.run(inputs))


def test_concurrent_calls_give_the_same_logits() -> None:
    build = grow_random_graph(11)
    engine, images = lib.Engine(to_bytes(build.build_model())), build.draw_images(5)
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
