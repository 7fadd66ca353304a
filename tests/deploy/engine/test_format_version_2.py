"""Version 2 of the format: the writer uses it only where it is needed, and a file of version 1 cannot contain it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node, PackedSigns
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.deploy.engine.reference import compute_outputs, run_reference
from lcrbnn.errors import InputError
from tests.deploy.engine.edited_files import (
    RNG,
    SMALL_DATA,
    SMALL_MODEL,
    assert_rejected,
    parse_graph,
    read_version,
    replace_graph,
    replace_version,
)
from tests.deploy.engine.small_models import draw_normal, make_model, make_model_with_every_op, make_window
from tests.deploy.engine.version_2_models import make_version_2_model

VERSION_2_DATA = to_bytes(make_version_2_model(RNG(0)))


def make_wide_bconv(channels: int, kernel: int = 1) -> BnnModel:
    """Return a model with one bconv of `channels` · `kernel` terms."""
    n = channels * kernel
    keys = {
        "weight": PackedSigns(np.zeros((1, -(-n // 8)), np.uint8), n),
        "threshold": np.zeros(channels, np.float32),
        "pad_sign": 0,
        "a": np.ones(1, np.float32),
        "b": np.zeros(1, np.float32),
        **make_window((kernel, 1), pad=(kernel - 1, 0, 0, 0)),
    }
    zeros, ones = (0.0,) * channels, (1.0,) * channels
    return BnnModel("m", (1, 1, channels), 1.0, zeros, ones, ("a",), (Node("bconv", "", (0,), keys),))


def test_models_of_version_1_are_written_as_version_1() -> None:
    for model in (SMALL_MODEL, make_model_with_every_op(RNG(0)), make_wide_bconv(65_535)):
        assert read_version(to_bytes(model)) == 1


def test_a_file_of_version_2_may_contain_a_model_of_version_1() -> None:
    assert to_bytes(from_bytes(replace_version(SMALL_DATA, 2), "f")) == SMALL_DATA
    assert_rejected(replace_version(SMALL_DATA, 3), "the version must be 1 or 2; the header has 3")
    assert_rejected(replace_version(SMALL_DATA, 0), "the version must be 1 or 2; the header has 0")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (make_model((2, 2, 3), Node("silu", "", (0,), {})), "the operator of node 0"),
        (
            make_model((2, 2, 3), Node("mean", "", (0,), {}), Node("add", "", (1, 0), {})),
            "the addition of two shapes in node 1",
        ),
        (make_wide_bconv(65_536), "a sum of more than 65535 terms in node 0"),
        (dataclasses.replace(SMALL_MODEL, outputs=(ModelOutput("logits", 4),)), "a list of outputs"),
    ],
    ids=["operator", "broadcasting", "long sum", "outputs"],
)
def test_each_feature_of_version_2_is_rejected_in_version_1(model: BnnModel, reason: str) -> None:
    data = to_bytes(model)
    assert read_version(data) == 2
    assert to_bytes(from_bytes(data, "f")) == data
    assert_rejected(replace_version(data, 1), f"{reason}.*needs version 2 of the format, but the file has version 1")


def test_unused_integer_tensors_are_rejected_in_version_1() -> None:
    graph = parse_graph(VERSION_2_DATA)
    del graph["outputs"]
    data = replace_graph(graph, replace_version(VERSION_2_DATA, 1))
    assert_rejected(data, "tensor 0: the type i32 needs version 2")


def test_sums_have_at_most_2_to_the_20_terms() -> None:
    infer_shapes(make_wide_bconv(2**10, 2**10))
    with pytest.raises(InputError, match="a sum must have at most 1048576 terms; got 1049600"):
        infer_shapes(make_wide_bconv(2**10, 2**10 + 1))


@pytest.mark.parametrize(
    ("outputs", "classes", "reason"),
    [
        (4, (), "outputs must be a list of at most 64; got 4"),
        ((4,), (), "an output must have a name and a value from 1 to 4; got 4"),
        (((ModelOutput("x", 4),) * 65), (), "outputs must be a list of at most 64"),
        ((ModelOutput("x", 4), ModelOutput("x", 3)), (), "the outputs must have different names"),
        ((ModelOutput("x", 0), ModelOutput("y", 4)), (), "an output must have a name and a value from 1 to 4"),
        ((ModelOutput("x", 5),), (), "an output must have a name and a value from 1 to 4"),
        ((ModelOutput("x", True),), (), "an output must have a name and a value from 1 to 4"),
        ((ModelOutput(3, 4),), (), "the name of an output must be a text"),
        ((ModelOutput("x", 3),), (), "every value must be used by a node or be an output; value 4 is not used"),
        ((ModelOutput("x", 2), ModelOutput("y", 4)), ("a", "b", "c"), "the first output must have the shape 1 x 1 x 3"),
        ((), (), "the last value must have the shape 1 x 1 x 0"),
    ],
)
def test_each_rule_for_outputs_is_checked(outputs: Any, classes: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        infer_shapes(dataclasses.replace(SMALL_MODEL, outputs=outputs, classes=classes))


@pytest.mark.parametrize("entry", [[], [4], [{"name": "x"}], [{"name": "x", "value": 4, "more": 1}], {}])
def test_malformed_outputs_of_a_file_are_rejected(entry: Any) -> None:
    graph = parse_graph(SMALL_DATA) | {"outputs": entry}
    assert_rejected(replace_graph(graph, replace_version(SMALL_DATA, 2)), "output")


FLOATS = draw_normal(RNG(0), 2)


@pytest.mark.parametrize(
    ("op", "keys", "reason"),
    [
        ("take", {"rows": np.array([0.0], np.float32)}, r"rows must be i32 \[n\]; got f32 \[1\]"),
        ("take", {"rows": np.array([4, 5], np.int32)}, "rows must contain indices from 0 to 4, or -1; got 5"),
        ("take", {"columns": np.array([-2], np.int32)}, "columns must contain indices from 0 to 2, or -1; got -2"),
        ("take", {"channels": np.array([2], np.int32)}, "channels must contain indices from 0 to 1, or -1; got 2"),
        ("take", {"fill": float("nan")}, "fill must be a number that float32 can represent; got nan"),
        ("take", {"fill": 1e39}, "fill must be a number that float32 can represent"),
        ("clamp", {"low": "0"}, "low must be a number that float32 can represent"),
        ("clamp", {"high": True}, "high must be a number that float32 can represent"),
        ("elu", {}, "the key 'alpha' is missing"),
        ("matmul", {"transpose": 2}, "transpose must be a whole number from 0 to 1; got 2"),
        ("bilinear", {"size": (2, 0), "align_corners": 0}, "size must be a list of 2 whole numbers from 1"),
        ("adaptive_avgpool", {"size": (2**20, 2**20)}, "its value would have the shape"),
        (
            "normalize",
            {"groups": 3, "spatial": 0, "eps": 0, "a": FLOATS, "b": FLOATS},
            "groups must divide the 2 ",
        ),
        ("normalize", {"groups": 1, "spatial": 0, "eps": -1e-60, "a": FLOATS, "b": FLOATS}, "eps must be at least 0"),
        ("constant", {"value": FLOATS}, r"value must be f32 or f16 \[h, w, c\]; got f32 \[2\]"),
        ("strided", {"strides": (3, 1, 1)}, "lengths and strides must have the same count; got 1 and 3"),
        ("strided", {"lengths": (29,)}, r"the product of lengths must be that of shape; got \[29\] and \[1, 10, 3\]"),
        ("strided", {"offset": 1}, "offset and strides must select elements 0 to 29; got 1 to 30"),
        ("strided", {"strides": (-1,), "offset": 28}, "offset and strides must select elements 0 to 29; got -1 to 28"),
        ("strided", {"strides": (2**28,)}, "offset and strides must select elements 0 to 29"),
        ("strided", {"lengths": ()}, "lengths must be a list of 1 to 8 whole numbers from 1"),
        ("strided", {"lengths": (1,) * 9}, "lengths must be a list of 1 to 8 whole numbers"),
        ("strided", {"shape": (1, 10, 2**21)}, "shape must be a list of 3 whole numbers from 1 to 1048576"),
    ],
)
def test_each_rule_for_attributes_of_version_2_is_checked(op: str, keys: dict[str, Any], reason: str) -> None:
    if op == "strided":
        keys = {"shape": (1, 10, 3), "lengths": (30,), "strides": (1,), "offset": 0} | keys
    inputs = {"constant": (), "matmul": (0, 0)}.get(op, (0,))
    model = make_model((5, 3, 2), Node("relu", "", (0,), {}))
    with pytest.raises(InputError, match=reason):
        infer_shapes(dataclasses.replace(model, nodes=(Node(op, "", inputs, keys), *model.nodes[1:])))


@pytest.mark.parametrize(
    ("shapes", "keys", "fits"),
    [
        (((2, 3, 4), (2, 4, 5)), {"transpose": 0}, True),
        (((2, 3, 4), (2, 5, 4)), {"transpose": 1}, True),
        (((2, 3, 4), (2, 5, 4)), {"transpose": 0}, False),
        (((2, 3, 4), (1, 4, 5)), {"transpose": 0}, False),
    ],
)
def test_shapes_of_matrices_must_fit(shapes: Any, keys: dict[str, int], fits: bool) -> None:
    constant = Node("constant", "", (), {"value": np.zeros(shapes[1], np.float32)})
    nodes = (constant, Node("matmul", "", (0, 1), keys))
    model = BnnModel("m", shapes[0], 1.0, (0.0,) * 4, (1.0,) * 4, (), nodes, outputs=(ModelOutput("y", 2),))
    if fits:
        assert infer_shapes(model)[-1] == (2, 3, 5)
    else:
        with pytest.raises(InputError, match="the second input of a matmul must have the shape"):
            infer_shapes(model)


def test_every_pair_of_broadcast_shapes() -> None:
    for first, second in itertools.product(itertools.product((1, 2), (1, 3), (1, 4)), repeat=2):
        constant = Node("constant", "", (), {"value": np.zeros(second, np.float32)})
        nodes = (constant, Node("multiply", "", (0, 1), {}))
        channels = first[2]
        model = BnnModel("m", first, 1.0, (0.0,) * channels, (1.0,) * channels, (), nodes)
        shapes = infer_shapes(dataclasses.replace(model, outputs=(ModelOutput("y", 2),)))
        assert shapes[-1] == np.broadcast_shapes(first, second)


def test_reference_returns_each_output() -> None:
    model = make_version_2_model(RNG(0))
    images = draw_normal(RNG(1), 2, *model.shape)
    outputs = compute_outputs(model, images)
    shapes = infer_shapes(model)
    assert {name: y.shape[1:] for name, y in outputs.items()} == {out.name: shapes[out.value] for out in model.outputs}
    with pytest.raises(InputError, match="must have one output, a vector; it has 3: 'logits', 'map', 'end'"):
        run_reference(model, images)
    only_map = dataclasses.replace(make_model((2, 2, 1), Node("relu", "", (0,), {})), classes=())
    only_map = dataclasses.replace(only_map, nodes=only_map.nodes[:1], outputs=(ModelOutput("map", 1),))
    with pytest.raises(InputError, match=r"the output must be a vector .*; it has the shape \(2, 2, 1\)"):
        run_reference(only_map, draw_normal(RNG(0), 1, 2, 2, 1))
