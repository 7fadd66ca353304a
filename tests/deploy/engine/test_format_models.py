"""Invalid models cannot be written: the rules that do not depend on the file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine.bnn_file import to_bytes, write_model
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import MAX_ENTRIES, infer_shapes
from lcrbnn.errors import InputError
from tests.deploy.engine.edited_files import RNG, SMALL_MODEL
from tests.deploy.engine.small_models import draw_attributes, draw_packed_signs, make_model, make_window

POOL = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("op", "keys", "fault"),
    [
        ("maxpool", {"pad": (2, 0, 0, 0)}, "each window must overlap the map; got the pad"),
        ("maxpool", {"pad": (0, 0, 0, 4)}, "each window must overlap the map"),
        ("maxpool", {"dilation": (1, 1)}, "no key of this op is called 'dilation'"),
        ("maxpool", {"groups": 1}, "no key of this op is called 'groups'"),
        ("avgpool", {"pad": (1, 0, 0, 0)}, "top and left of pad must be 0"),
        ("avgpool", {"pad": (0, 1, 0, 0)}, "top and left of pad must be 0"),
        ("avgpool", {"pad": (0, 0, 3, 0)}, "each window must overlap the map"),
        ("avgpool", {"kernel": (6, 2)}, "the window spans 6 rows, but the map has 5 with its pad"),
    ],
)
def test_pool_windows_must_overlap_the_map(op: str, keys: dict[str, Any], fault: str) -> None:
    model = make_model((5, 5, 1), Node("relu", "r", (0,), {}))
    for node in (Node(op, "p", (0,), POOL | keys),):
        with pytest.raises(InputError, match=f"^node 0 .*: {fault}"):
            to_bytes(BnnModel(**{**vars(model), "nodes": (node, *model.nodes[1:])}))


def test_the_last_pool_window_may_overlap_one_pixel_only() -> None:
    infer_shapes(make_model((5, 5, 1), Node("maxpool", "p", (0,), POOL | {"pad": (1, 0, 0, 1)})))
    infer_shapes(make_model((5, 5, 1), Node("avgpool", "p", (0,), POOL | {"pad": (0, 0, 1, 1)})))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (
            {"weight": draw_packed_signs(RNG(0), 3, 18)},
            r"weight must be f32 or f16 \[out, kh, kw, in/groups\]; got bits",
        ),
        ({"weight": np.zeros((3, 3, 3, 2))}, "weight must be f32 or f16"),
        ({"weight": np.zeros((3, 3, 3, 2), ">f4")}, "weight must be f32 or f16"),
        ({"weight": np.zeros((3, 3, 3, 1), np.float32)}, r"in/groups = 2\]; got \[3, 3, 3, 1\]"),
        ({"weight": np.zeros((3, 2, 3, 2), np.float32)}, r"kh = 3, .* got \[3, 2, 3, 2\]"),
        ({"weight": np.zeros((0, 3, 3, 2), np.float32)}, "its value would have the shape"),
        ({"weight": "mean"}, "weight must be f32 or f16"),
        ({"weight": [1.0]}, "weight must be f32 or f16"),
        ({"bias": np.zeros(3, np.float16)}, r"bias must be f32 \[out\]; got f16"),
        ({"bias": None}, r"bias must be f32 \[out\]; got None"),
        ({"groups": np.int64(1)}, "groups must be a whole number"),
    ],
)
def test_a_wrong_model_is_not_written(keys: dict[str, Any], fault: str, tmp_path: Path) -> None:
    right = draw_attributes(RNG(0), "conv", 2, 3, make_window((3, 3)))
    model = make_model((3, 3, 2), Node("conv", "c", (0,), right))
    wrong = BnnModel(**{**vars(model), "nodes": (Node("conv", "c", (0,), right | keys), *model.nodes[1:])})
    with pytest.raises(InputError, match=f"^node 0 .*: .*{fault}"):
        write_model(tmp_path / "model.bnn", wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("packed", [np.zeros((3, 2), np.uint8), np.zeros((3, 3), np.int8), np.zeros(9, np.uint8), None])
def test_packed_signs_of_wrong_shape_are_rejected(packed: Any) -> None:
    node = SMALL_MODEL.nodes[0]
    wrong = Node("bconv", "b", (0,), node.attributes | {"weight": PackedSigns(packed, 18)})
    with pytest.raises(InputError, match="weight must be bits"):
        to_bytes(BnnModel(**{**vars(SMALL_MODEL), "nodes": (wrong, *SMALL_MODEL.nodes[1:])}))


def test_inputs_of_add_must_have_shapes_that_broadcast() -> None:
    nodes = (
        Node("subsample", "s", (0,), {"stride": (2, 1)}),
        Node("add", "a", (0, 1), {}),
        Node("mean", "m", (2,), {}),
    )
    model = BnnModel("m", (4, 2, 1), 1, (0,), (1,), ("a",), nodes)
    with pytest.raises(
        InputError, match=r"node 1 .*dimensions of both inputs must be equal or 1; got \(4, 2, 1\) and \(2, 2, 1\)"
    ):
        infer_shapes(model)


def test_values_with_too_many_channels_are_rejected() -> None:
    for node in (Node("flatten", "", (0,), {}), Node("channels", "", (0,), {"before": 2**20, "after": 0})):
        model = BnnModel("m", (2**11, 2**10, 1), 1, (0,), (1,), ("a",), (node, Node("mean", "", (1,), {})))
        with pytest.raises(InputError, match=r"node 0 .*its value would have the shape"):
            infer_shapes(model)


def test_size_limits_also_apply_to_writing() -> None:
    long = BnnModel(**{**vars(SMALL_MODEL), "name": "x" * 2**24})
    with pytest.raises(
        InputError, match="a graph must have at most 16777216 bytes and a file at most 2147483648; this model would"
    ):
        to_bytes(long)
    ones = np.ones(1, np.float32)
    many = make_model(
        (1, 1, 1), *(Node("affine", "", (i,), {"a": ones, "b": ones}) for i in range(MAX_ENTRIES // 2 + 1))
    )
    with pytest.raises(InputError, match="a file must have at most 65536 tensors; this model has 65538"):
        to_bytes(many)
    channels = 2**19 + 8
    attributes = draw_attributes(RNG(0), "wconv", channels, 1, make_window((1, 2)))
    with pytest.raises(InputError, match="no dimension of weight may be larger than 1048576"):
        infer_shapes(make_model((1, 2, channels), Node("wconv", "", (0,), attributes)))


def test_texts_with_nul_are_rejected() -> None:
    with pytest.raises(InputError, match="without NUL"):
        infer_shapes(dataclasses.replace(SMALL_MODEL, name="a\0b"))
