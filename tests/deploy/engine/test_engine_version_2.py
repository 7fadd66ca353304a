"""The engine computes models of version 2 as the reference does: equal bits, several outputs, long sums, views."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node, PackedSigns
from lcrbnn.errors import InputError
from tests.deploy.engine.random_graphs import (
    RandomGraph,
    add_chain,
    assert_engine_equals_reference,
    grow_random_graph,
    skip_without_engine,
)
from tests.deploy.engine.small_models import draw_attributes, draw_normal, make_model, make_window
from tests.deploy.engine.version_2_models import (
    ACTIVATIONS,
    make_attention_model,
    make_broadcast_model,
    make_version_2_model,
)

skip_without_engine()

RNG = np.random.default_rng


def list_kernels() -> list[str]:
    """Return the kernels of this machine, from the message for an unknown kernel."""
    model = make_model((1, 1, 8), Node("bconv", "", (0,), draw_attributes(RNG(0), "bconv", 8, 8, make_window())))
    try:
        lib.Engine(to_bytes(model), kernel="none")
    except InputError as error:
        return str(error).split("there are ")[1].split(", ")
    raise AssertionError("the engine accepts every kernel")


KERNELS = list_kernels()
RESHAPE = {"shape": (5, 6, 8), "lengths": (240,), "strides": (1,), "offset": 0}


def make_map_model(shape: tuple[int, int, int], *nodes: Node) -> BnnModel:
    """Return a model whose only output is the value of the last node."""
    c = shape[2]
    outputs = (ModelOutput("y", len(nodes)),)
    return BnnModel("m", shape, 255.0, (0.5,) * c, (0.25,) * c, (), nodes, outputs=outputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("op", "keys"),
    [*((op, {}) for op in ACTIVATIONS), ("elu", {"alpha": 0.7}), ("clamp", {"low": -1.0, "high": 2.0})],
)
def test_activations_have_the_bits_of_the_reference(op: str, keys: dict[str, Any], kernel: str) -> None:
    """Use numbers of every size, for rows that fill vectors and for rows with a rest."""
    rng = RNG(0)
    powers = 10.0 ** rng.uniform(-45, 38.5, 10_000)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, -87, -87.00001, -86.99999, 0.5625, -0.34375, 1e-45]
    x = np.concatenate([4 * rng.standard_normal(60_000), rng.uniform(-120, 120, 20_000), powers, -powers, special])
    for width in (64, 13):
        x = np.resize(x.astype(np.float32), (2, 7, len(x) // (14 * width) + 1, width))
        y = lib.Engine(to_bytes(make_map_model(x.shape[1:], Node(op, "", (0,), keys))), kernel=kernel)
        expected = reference.compute_node(Node(op, "", (0,), keys), [x], 2)
        result = y.run_outputs(x)["y"]
        is_number = ~np.isnan(expected)
        assert np.array_equal(is_number, ~np.isnan(result))
        assert np.array_equal(result.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("make", [make_version_2_model, make_attention_model, make_broadcast_model])
def test_models_of_version_2_equal_the_reference(make: Any, kernel: str) -> None:
    model = make(RNG(0))
    assert_engine_equals_reference(model, draw_normal(RNG(1), 3, *model.shape), kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_sums_of_more_than_16_bits_are_exact(groups: int, pad_sign: int, kernel: str) -> None:
    rng = RNG(groups)
    window = make_window((3, 3), (1, 1), (1, 1, 1, 1), groups=groups)
    c = groups * 7300  # 65,700 terms
    keys = draw_attributes(rng, "bconv", c, groups * 9, window) | {"pad_sign": pad_sign}
    if groups == 2:
        keys |= {"spatial": draw_normal(rng, 2, 3, 1), "threshold": "mean"}
    second = draw_attributes(rng, "bconv", groups * 9, 5, make_window())
    nodes = (Node("bconv", "", (0,), keys), Node("silu", "", (1,), {}), Node("bconv", "", (2,), second))
    model = make_map_model((2, 3, c), *nodes)
    assert_engine_equals_reference(model, draw_normal(rng, 2, 2, 3, c), kernel=kernel)
    assert lib.Engine(to_bytes(model)).kernels[0] == "wide"


@pytest.mark.parametrize(("size", "channels"), [(1, 65_535), (16, 256), (16, 4096)])
def test_the_largest_sums_are_exact(size: int, channels: int) -> None:
    """All signs agree, so the sum is the number of terms: 65,535, one more, and 2^20, the limit of the format."""
    terms = size * size * channels
    keys = draw_attributes(RNG(0), "bconv", channels, 1, make_window((size, size)))
    keys |= {"threshold": np.zeros(channels, np.float32), "pad_sign": 1}
    keys["weight"] = PackedSigns(pack_signs(np.ones((1, terms), bool)), terms)
    model = make_map_model((size, size, channels), Node("bconv", "", (0,), keys))
    engine = lib.Engine(to_bytes(model))
    images = np.ones((1, size, size, channels), np.float32)
    assert engine.accumulators(images, 0).item() == terms
    assert engine.accumulators(-images, 0).item() == -terms
    assert np.array_equal(engine.run_outputs(images)["y"].ravel(), keys["a"] * np.float32(terms) + keys["b"])


@pytest.mark.parametrize("op", [*ACTIVATIONS, "elu", "clamp", "multiply"])
def test_signs_after_an_activation_are_those_of_its_value(op: str) -> None:
    """Without the activation, the engine would compare the integer sums with limits."""
    rng = RNG(0)
    window = make_window((3, 3), pad=(1, 1, 1, 1))
    first, second = (draw_attributes(rng, "bconv", 32, 32, window) for _ in range(2))
    keys = {"elu": {"alpha": 0.7}, "clamp": {"low": 0.25, "high": 0.5}}.get(op, {})
    constant = Node("constant", "", (), {"value": draw_normal(rng, 5, 6, 32)})
    activation = Node(op, "", (2, 1) if op == "multiply" else (2,), keys)
    nodes = (constant, Node("bconv", "", (0,), first), activation, Node("bconv", "", (3,), second))
    model = make_map_model((5, 6, 32), *nodes, Node("add", "", (4, 1), {}))
    for kernel in KERNELS:
        assert_engine_equals_reference(model, draw_normal(rng, 2, 5, 6, 32), kernel)


def test_unknown_kernels_are_rejected_for_long_sums() -> None:
    model = make_map_model(
        (1, 1, 65_536), Node("bconv", "", (0,), draw_attributes(RNG(0), "bconv", 65_536, 1, make_window()))
    )
    with pytest.raises(InputError, match="no binary kernel none can compute node 0; there are"):
        lib.Engine(to_bytes(model), kernel="none")


def test_any_value_can_be_an_output() -> None:
    """Inner values of fused stages, values that a later sum could overwrite, views, constants and duplicates."""
    for seed in range(30):
        graph = RandomGraph(seed, (6, 7, 16))
        add_chain(graph, "conv", "affine", "relu", "maxpool", "bconv", "hardtanh", "bconv", "gelu")
        graph.version = 2
        add_chain(graph, "multiply", "clamp", "bconv", "add", "tanh", "constant", "strided", "flatten")
        graph.add_random_node("flatten", 0)
        model = graph.build_model()
        values = range(1, len(model.nodes) + 1)
        outputs = [ModelOutput("logits", len(model.nodes)), *(ModelOutput(f"value {v}", v) for v in values)]
        model = dataclasses.replace(model, outputs=tuple(outputs[:64]))
        assert_engine_equals_reference(model, graph.draw_images(2))
        single = dataclasses.replace(
            model, outputs=(outputs[0], ModelOutput("inner", 1 + seed % (len(model.nodes) - 1)))
        )
        assert_engine_equals_reference(single, graph.draw_images(2), kernel="scalar" if seed % 2 else None)


def test_a_pool_does_not_swallow_an_output() -> None:
    """Without outputs the convolution and the pool are one stage, which never stores the value between them."""
    graph = RandomGraph(0, (19, 23, 3))
    add_chain(graph, "conv", "silu")
    h, w, c = graph.shapes[-1]
    keys = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
    graph.add_node("maxpool", (2,), ((h - 1) // 2 + 1, (w - 1) // 2 + 1, c), **keys)
    model, images = graph.build_model(), graph.draw_images(2)
    assert lib.Engine(to_bytes(model)).kernels[2] == "fused"
    assert_engine_equals_reference(model, images)
    with_output = dataclasses.replace(
        model, outputs=(ModelOutput("logits", len(model.nodes)), ModelOutput("before the pool", 2))
    )
    assert lib.Engine(to_bytes(with_output)).kernels[2] != "fused"
    assert_engine_equals_reference(with_output, images)


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_a_sum_does_not_overwrite_a_constant_or_an_output(op: str) -> None:
    """The engine writes a sum over an input that is not read later, unless this input must be kept."""
    rng = RNG(0)
    keys = draw_attributes(rng, "bconv", 8, 8, make_window((3, 3), pad=(1, 1, 1, 1)))
    first = Node("constant", "", (), {"value": draw_normal(rng, 5, 6, 8)})
    for other in (first, Node("relu", "", (0,), {}), Node("strided", "", (0,), RESHAPE), Node("bconv", "", (0,), keys)):
        nodes = (other, Node("bconv", "", (0,), keys), Node(op, "", (1, 2), {}), Node("mean", "", (3,), {}))
        model = make_map_model((5, 6, 8), *nodes, Node("multiply", "", (3, 4), {}))
        images = draw_normal(rng, 2, 5, 6, 8)
        assert_engine_equals_reference(model, images)
        outputs = (ModelOutput("y", 5), ModelOutput("other", 1), ModelOutput("sum", 3))
        assert_engine_equals_reference(dataclasses.replace(model, outputs=outputs), images)


def test_reshapes_need_no_computation() -> None:
    reshape = {"shape": (1, 6, 20), "lengths": (6, 5, 4), "strides": (20, 4, 1), "offset": 0}
    transpose = {"shape": (4, 6, 5), "lengths": (4, 6, 5), "strides": (1, 20, 4), "offset": 0}
    part = {"shape": (1, 1, 119), "lengths": (119,), "strides": (1,), "offset": 1}
    for keys, kernel_is_view in ((reshape, True), (transpose, False), (part, False)):
        model = make_map_model((6, 5, 4), Node("relu", "", (0,), {}), Node("strided", "", (1,), keys))
        assert (lib.Engine(to_bytes(model)).kernels[1] == "view") == kernel_is_view
        assert_engine_equals_reference(model, draw_normal(RNG(0), 2, 6, 5, 4))


def test_nan_and_infinity_pass_through_graphs() -> None:
    for seed in range(40):
        graph = grow_random_graph(4000 + seed, version=2)
        data, images = to_bytes(graph.build_model(num_outputs=3)), graph.draw_images(2)
        images.reshape(-1)[graph.rng.integers(0, images.size, 4)] = [np.nan, np.inf, -np.inf, 3e38]
        fused, unfused = (lib.Engine(data, fuse=fuse).run_outputs(images, threads=2) for fuse in (True, False))
        for name, value in unfused.items():
            assert np.array_equal(fused[name], value, equal_nan=True), (seed, name)


def test_run_outputs_accepts_every_model_and_run_only_classifiers() -> None:
    model = make_version_2_model(RNG(0))
    engine, images = lib.Engine(to_bytes(model)), draw_normal(RNG(0), 2, *model.shape)
    assert engine.outputs == (("logits", (1, 1, 3)), ("map", (3, 4, 3)), ("end", (1, 1, 2)))
    with pytest.raises(InputError, match=r"m must have one output, a vector .*; it has logits \(1x1x3\), map"):
        engine.run(images)
    pixels = RNG(1).integers(0, 256, images.shape).astype(np.uint8)
    inputs = reference.preprocess_pixels(model, reference.scale_pixels(model, pixels))
    for name, value in engine.run_outputs(pixels).items():
        assert np.array_equal(value, engine.run_outputs(inputs)[name])
    assert {name: value.shape for name, value in engine.run_outputs(images[:0]).items()} == {
        "logits": (0, 1, 1, 3),
        "map": (0, 3, 4, 3),
        "end": (0, 1, 1, 2),
    }
    map_engine = lib.Engine(to_bytes(make_map_model((2, 2, 3), Node("relu", "", (0,), {}))))
    with pytest.raises(InputError, match=r"must have one output, a vector .*; it has y \(2x2x3\)"):
        map_engine.run(draw_normal(RNG(0), 1, 2, 2, 3))
    classifier = grow_random_graph(0)
    engine = lib.Engine(to_bytes(classifier.build_model()))
    images = classifier.draw_images(2)
    assert np.array_equal(engine.run_outputs(images)["output"].reshape(2, -1), engine.run(images))
