"""The Python reader and the engine accept the same files, also for edge cases of docs/format.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node
from lcrbnn.errors import InputError
from tests.deploy.engine.edited_files import (
    SMALL_DATA,
    add_checksum,
    parse_graph,
    replace_graph,
    replace_version,
    try_both_readers,
)
from tests.deploy.engine.random_graphs import skip_without_engine

skip_without_engine()

BOTH_ACCEPT, BOTH_REJECT = (True, True), (False, False)
MAX_FLOAT32_TEXT = "340282346638528859811704183484516925440"  # of float32


def replace_number(word: str, *path: Any) -> bytes:
    """Return a file with this text of a number at a path of its graph."""
    graph = parse_graph(SMALL_DATA)
    at: Any = graph
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = "WORD"
    return replace_graph(graph, SMALL_DATA, word)


@pytest.mark.parametrize(
    ("word", "accepted"),
    [
        ("3.4e38", BOTH_ACCEPT),
        ("3.4028234e38", BOTH_ACCEPT),
        ("3.4028234663852886e38", BOTH_ACCEPT),  # the largest float32
        (MAX_FLOAT32_TEXT, BOTH_ACCEPT),
        ("3.4028235677973362e38", BOTH_ACCEPT),  # the largest double that rounds to it
        ("3.4028235677973366e38", BOTH_REJECT),  # rounds to infinity
        ("3.5e38", BOTH_REJECT),
        ("1e39", BOTH_REJECT),
        ("1e308", BOTH_REJECT),
        ("1e309", BOTH_REJECT),
        ("1" + "0" * 40, BOTH_REJECT),
        ("1e-45", BOTH_ACCEPT),  # the smallest float32 above 0
        ("8e-46", BOTH_ACCEPT),  # rounds to it
        ("7e-46", BOTH_REJECT),  # rounds to 0
        ("1e-400", BOTH_REJECT),
        ("0.5" + "0" * 60, BOTH_ACCEPT),  # 63 characters
        ("0.5" + "0" * 61, BOTH_REJECT),
        ("1" * 64, BOTH_REJECT),
        ("-1", BOTH_REJECT),
        ("01", BOTH_REJECT),
        ("+1", BOTH_REJECT),
        ("1.", BOTH_REJECT),
        ("NaN", BOTH_REJECT),
    ],
)
def test_numbers_at_the_edge_of_float32(word: str, accepted: tuple[bool, bool]) -> None:
    for path in (("input", "top"), ("input", "std", 1)):
        assert try_both_readers(replace_number(word, *path)) == accepted, path


@pytest.mark.parametrize("word", ["-3.4028235677973362e38", "0", "-0", "-0.0", "1e-400", "12"])
def test_means_may_have_any_sign_or_be_zero(word: str) -> None:
    assert try_both_readers(replace_number(word, "input", "mean", 0)) == BOTH_ACCEPT


@pytest.mark.parametrize("word", ["1.0", "1e0", "10e-1", "true", "1" + "0" * 62, "1" + "0" * 63])
def test_integers_with_a_point_or_exponent_are_rejected(word: str) -> None:
    assert try_both_readers(replace_number(word, "nodes", 0, "groups")) == BOTH_REJECT
    assert try_both_readers(replace_number("1", "nodes", 0, "groups")) == BOTH_ACCEPT


ATTRIBUTES = {
    "take": {"rows": np.array([0, -1, 2], np.int32), "fill": 0.5},
    "strided": {"shape": (1, 6, 2), "lengths": (12,), "strides": (1,), "offset": 3},
    "normalize": {"groups": 2, "spatial": 0, "eps": 0.5, "a": np.ones(2, np.float32), "b": np.ones(2, np.float32)},
    "clamp": {"low": -1.0, "high": 1.0},
    "elu": {"alpha": 1.0},
    "bilinear": {"size": (2, 2), "align_corners": 1},
    "matmul": {"transpose": 1},
    "constant": {"value": np.ones((3, 3, 1), np.float32)},
}


def make_version_2_data(op: str) -> bytes:
    """Return a file with one operator of version 2 and an explicit output."""
    inputs = {"constant": (), "matmul": (0, 0)}.get(op, (0,))
    nodes = (Node(op, "", inputs, ATTRIBUTES[op]), Node("add", "", (0, 0), {}))
    outputs = (ModelOutput("y", 1), ModelOutput("z", 2))
    model = BnnModel("m", (3, 3, 2), 1.0, (0.0,) * 2, (1.0,) * 2, (), nodes, outputs=outputs)
    return to_bytes(model)


@pytest.mark.parametrize(
    ("op", "key", "value", "accepted"),
    [
        ("take", "fill", 1, True),
        ("take", "fill", 3.4e38, True),
        ("take", "fill", 3.5e38, False),
        ("take", "fill", -1e-60, True),
        ("take", "fill", "0", False),
        ("take", "rows", 1, False),
        ("take", "columns", 0, True),
        ("take", "channels", 0, False),  # index 2 of two channels
        ("strided", "offset", 6, True),
        ("strided", "offset", 7, False),
        ("strided", "offset", -1, False),
        ("strided", "offset", 2**28 + 1, False),
        ("strided", "strides", [-1], False),
        ("strided", "strides", [0], True),
        ("strided", "strides", [2**28], False),
        ("strided", "strides", [1, 1], False),
        ("strided", "lengths", [12, 1], False),
        ("strided", "lengths", [13], False),
        ("strided", "lengths", [], False),
        ("strided", "lengths", [2**28], False),
        ("strided", "shape", [2, 3, 2], True),
        ("strided", "shape", [12, 1], False),
        ("normalize", "eps", 0, True),
        ("normalize", "eps", -0.0, True),
        ("normalize", "eps", 1e-60, True),
        ("normalize", "eps", -1e-60, False),
        ("normalize", "groups", 3, False),
        ("normalize", "spatial", 2, False),
        ("clamp", "low", None, False),
        ("clamp", "low", 2, True),
        ("clamp", "high", -3e38, True),
        ("elu", "alpha", True, False),
        ("elu", "alpha", 10**40, False),
        ("bilinear", "size", [0, 2], False),
        ("bilinear", "size", [2**20, 2**20], False),
        ("bilinear", "align_corners", 2, False),
        ("matmul", "transpose", 0, False),
        ("matmul", "transpose", True, False),
        ("constant", "value", -1, False),
        ("constant", "in", [0], False),
    ],
)
def test_both_readers_agree_on_attributes_of_version_2(op: str, key: str, value: Any, accepted: bool) -> None:
    data = make_version_2_data(op)
    assert try_both_readers(data) == BOTH_ACCEPT
    graph = parse_graph(data)
    graph["nodes"][0][key] = value
    assert try_both_readers(replace_graph(graph, data)) == (accepted, accepted)


@pytest.mark.parametrize("op", ATTRIBUTES)
def test_both_readers_require_all_keys_of_version_2(op: str) -> None:
    data = make_version_2_data(op)
    for key in ATTRIBUTES[op]:
        graph = parse_graph(data)
        del graph["nodes"][0][key]
        expected = BOTH_ACCEPT if op in ("take", "clamp") else BOTH_REJECT  # all keys of these two are optional
        assert try_both_readers(replace_graph(graph, data)) == expected, key


@pytest.mark.parametrize(
    ("outputs", "accepted"),
    [
        ([{"name": "y", "value": 1}, {"name": "z", "value": 2}], True),
        ([{"name": "y", "value": 2}, {"name": "z", "value": 1}], True),
        ([{"name": "y", "value": 1}, {"name": "y", "value": 2}], False),
        ([{"name": "y", "value": 1}], False),
        ([{"name": "y", "value": 1}, {"name": "z", "value": 3}], False),
        ([{"name": "y", "value": 0}, {"name": "z", "value": 2}], False),
        ([{"name": "y", "value": 1}, {"name": "z", "value": 2}, {"name": "", "value": 1}], True),
        ([{"name": "y", "value": 1}, {"name": "z", "value": 2.0}], False),
        ([{"name": "y", "value": 1}, {"name": "z", "value": 2, "more": 1}], False),
        ([{"name": "y", "value": 1}, {"name": 3, "value": 2}], False),
        ([{"name": str(i), "value": 1 + i % 2} for i in range(64)], True),
        ([{"name": str(i), "value": 1 + i % 2} for i in range(65)], False),
        ([], False),
        (None, False),
        ("del", False),
    ],
)
def test_both_readers_agree_on_outputs(outputs: Any, accepted: bool) -> None:
    data = make_version_2_data("clamp")
    graph = parse_graph(data) | {"outputs": outputs}
    if outputs == "del":
        del graph["outputs"]
    assert try_both_readers(replace_graph(graph, data)) == (accepted, accepted)


def test_both_readers_reject_version_2_in_files_of_version_1() -> None:
    for op in ATTRIBUTES:
        assert try_both_readers(replace_version(make_version_2_data(op), 1)) == BOTH_REJECT
        graph = parse_graph(make_version_2_data(op))
        del graph["outputs"]
        assert try_both_readers(replace_graph(graph, replace_version(make_version_2_data(op), 1))) == BOTH_REJECT
    assert try_both_readers(replace_version(SMALL_DATA, 2)) == BOTH_ACCEPT
    assert try_both_readers(replace_version(SMALL_DATA, 3)) == BOTH_REJECT


def add_unused_tensor(content: bytes) -> bytes:
    """Return a file with one more tensor, bits [1, 12], that no node uses."""
    start, size = (int.from_bytes(SMALL_DATA[at : at + 8], "little") for at in (40, 48))
    extended = SMALL_DATA[:48] + (size + 64).to_bytes(8, "little") + SMALL_DATA[56:-32] + content.ljust(64, b"\0")
    data = add_checksum(extended[:16] + (len(extended) + 32).to_bytes(8, "little") + extended[24:])
    graph = parse_graph(SMALL_DATA)
    graph["tensors"].append({"type": "bits", "shape": [1, 12], "offset": start + size, "bytes": 2})
    return replace_graph(graph, data)


def test_nonzero_padding_bits_of_unused_tensors_are_rejected() -> None:
    assert try_both_readers(add_unused_tensor(b"\xff\x0f")) == BOTH_ACCEPT
    assert try_both_readers(add_unused_tensor(b"\xff\x1f")) == BOTH_REJECT
    with pytest.raises(InputError, match="the padding bits of each row must be 0"):
        from_bytes(add_unused_tensor(b"\xff\x1f"), "f")
    with pytest.raises(InputError, match="the padding bits of each row must be 0"):
        lib.Engine(add_unused_tensor(b"\xff\x1f"))


@pytest.mark.parametrize("count", [20, 511, 512, 513, 5000])
def test_objects_with_many_unknown_keys_are_rejected(count: int) -> None:
    for place in ("input", "nodes"):
        graph = parse_graph(SMALL_DATA)
        at = graph[place] if place == "input" else graph[place][0]
        at |= {f"key {i}": i for i in range(count)}
        assert try_both_readers(replace_graph(graph, SMALL_DATA)) == BOTH_REJECT


def test_many_class_names_are_accepted() -> None:
    graph = parse_graph(SMALL_DATA)
    graph["classes"] = ["x"] * 600
    graph["nodes"].insert(2, {"op": "channels", "name": "", "in": [2], "before": 0, "after": 597})
    for node in graph["nodes"][3:]:
        node["in"] = [value + 1 for value in node["in"]]
    assert try_both_readers(replace_graph(graph, SMALL_DATA)) == BOTH_ACCEPT
