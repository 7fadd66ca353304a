"""Models that must not be written: each rule that holds for models of any origin."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.engine.check import COUNT, shapes
from lcrbnn.engine.format import Bits, Model, Node, to_bytes, write_model
from lcrbnn.errors import InputError
from tests.engine import made, random_bits, random_keys, window
from tests.engine.files import RNG, SMALL

POOL = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("op", "keys", "fault"),
    [
        ("maxpool", {"pad": (2, 0, 0, 0)}, "a window lies outside the map; pad is"),
        ("maxpool", {"pad": (0, 0, 0, 4)}, "a window lies outside the map"),
        ("maxpool", {"dilation": (1, 1)}, "no key of this op is called 'dilation'"),
        ("maxpool", {"groups": 1}, "no key of this op is called 'groups'"),
        ("avgpool", {"pad": (1, 0, 0, 0)}, "top and left of pad must be 0"),
        ("avgpool", {"pad": (0, 1, 0, 0)}, "top and left of pad must be 0"),
        ("avgpool", {"pad": (0, 0, 3, 0)}, "a window lies outside the map"),
        ("avgpool", {"kernel": (6, 2)}, "the window spans 6 rows; with its pad the map has 5"),
    ],
)
def test_windows_of_pools_see_the_map(op: str, keys: dict[str, Any], fault: str) -> None:
    model = made((5, 5, 1), Node("relu", "r", (0,), {}))
    for node in (Node(op, "p", (0,), POOL | keys),):
        with pytest.raises(InputError, match=f"^node 0 .*: {fault}"):
            to_bytes(Model(**{**vars(model), "nodes": (node, *model.nodes[1:])}))


def test_the_last_row_of_a_pool_may_see_one_pixel() -> None:
    shapes(made((5, 5, 1), Node("maxpool", "p", (0,), POOL | {"pad": (1, 0, 0, 1)})))
    shapes(made((5, 5, 1), Node("avgpool", "p", (0,), POOL | {"pad": (0, 0, 1, 1)})))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"weight": random_bits(RNG(0), 3, 18)}, r"weight must be f32 or f16 \[out, kh, kw, in/groups\]; got bits"),
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
    right = random_keys(RNG(0), "conv", 2, 3, window((3, 3)))
    model = made((3, 3, 2), Node("conv", "c", (0,), right))
    wrong = Model(**{**vars(model), "nodes": (Node("conv", "c", (0,), right | keys), *model.nodes[1:])})
    with pytest.raises(InputError, match=f"^node 0 .*: .*{fault}"):
        write_model(tmp_path / "model.bnn", wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("packed", [np.zeros((3, 2), np.uint8), np.zeros((3, 3), np.int8), np.zeros(9, np.uint8), None])
def test_bits_that_are_no_rows_are_refused(packed: Any) -> None:
    node = SMALL.nodes[0]
    wrong = Node("bconv", "b", (0,), node.keys | {"weight": Bits(packed, 18)})
    with pytest.raises(InputError, match="weight must be bits"):
        to_bytes(Model(**{**vars(SMALL), "nodes": (wrong, *SMALL.nodes[1:])}))


def test_inputs_of_add_have_one_shape() -> None:
    nodes = (Node("mean", "m", (0,), {}), Node("add", "a", (0, 1), {}), Node("mean", "m", (2,), {}))
    model = Model("m", (2, 2, 1), 1, (0,), (1,), ("a",), nodes)
    with pytest.raises(InputError, match=r"node 1 .*both inputs must have one shape; got \(2, 2, 1\) and \(1, 1, 1\)"):
        shapes(model)


def test_a_flatten_too_long_and_too_many_channels_are_refused() -> None:
    for node in (Node("flatten", "", (0,), {}), Node("channels", "", (0,), {"before": 2**20, "after": 0})):
        model = Model("m", (2**11, 2**10, 1), 1, (0,), (1,), ("a",), (node, Node("mean", "", (1,), {})))
        with pytest.raises(InputError, match=r"node 0 .*its value would have the shape"):
            shapes(model)


def test_limits_hold_for_what_is_written_too() -> None:
    long = Model(**{**vars(SMALL), "name": "x" * 2**24})
    with pytest.raises(InputError, match="a graph has at most 16777216 bytes and a file 2147483648; this model would"):
        to_bytes(long)
    one = np.ones(1, np.float32)
    many = made((1, 1, 1), *(Node("affine", "", (i,), {"a": one, "b": one}) for i in range(COUNT // 2 + 1)))
    with pytest.raises(InputError, match="a file has at most 65536 tensors; this model has 65538"):
        to_bytes(many)
    channels = 2**19 + 8
    wide = random_keys(RNG(0), "wconv", channels, 1, window((1, 2)))
    with pytest.raises(InputError, match="no dimension of weight may be over 1048576"):
        shapes(made((1, 2, channels), Node("wconv", "", (0,), wide)))


def test_sums_of_signs_have_a_longest_and_texts_no_nul() -> None:
    def wide(channels: int) -> Model:
        keys = {
            "weight": Bits(np.zeros((1, -(-channels // 8)), np.uint8), channels),
            "threshold": np.zeros(channels, np.float32),
            "pad_sign": 0,
            "a": np.ones(1, np.float32),
            "b": np.zeros(1, np.float32),
            "kernel": (1, 1),
            "stride": (1, 1),
            "pad": (0, 0, 0, 0),
            "dilation": (1, 1),
            "groups": 1,
        }
        zeros, ones = (0.0,) * channels, (1.0,) * channels
        return Model("m", (1, 1, channels), 1.0, zeros, ones, ("a",), (Node("bconv", "", (0,), keys),))

    assert shapes(wide(65_535))[-1] == (1, 1, 1)
    with pytest.raises(InputError, match="a sum has at most 65535 terms; got 65536"):
        shapes(wide(65_536))
    with pytest.raises(InputError, match="without NUL"):
        shapes(dataclasses.replace(wide(8), name="a\0b"))
