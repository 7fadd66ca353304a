"""Violations of each rule for the graph in docs/format.md, and thousands of graphs with random changes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.operators import MAX_ENTRIES, infer_shapes
from lcrbnn.errors import InputError
from tests.deploy.engine.edited_files import (
    PADDED_DATA,
    RNG,
    SMALL_MODEL,
    Graph,
    add_graph_padding,
    assert_rejected,
    parse_graph,
    replace_padded_graph,
)
from tests.deploy.engine.small_models import make_model_with_every_op
from tests.deploy.engine.version_2_models import make_version_2_model


def make_setter(*path: Any) -> Callable[[Graph, Any], None]:
    """Return a function that sets the value at a path of the graph; the value "del" deletes the key."""

    def set_value(graph: Any, value: Any) -> None:
        for step in path[:-1]:
            graph = graph[step]
        if value == "del":
            del graph[path[-1]]
        else:
            graph[path[-1]] = value

    return set_value


HUGE, TEXT = 10**60, "x" * 100_000
DEEP = json.loads("[" * 200 + "]" * 200)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("more",), 1, "the graph must be an object with the keys"),
        (("writer",), "del", "the graph must be an object with the keys"),
        (("writer",), 1, "the writer's name must be a text of UTF-8 without NUL; got 1"),
        (("name",), None, "the model's name must be a text"),
        (("name",), DEEP, "the model's name must be a text"),
        (("input",), [], "the input must be an object"),
        (("input", "more"), 1, "the input must be an object"),
        (("input", "shape"), [3, 3], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [3, 3, 2.0], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [3, 3, True], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [0, 3, 2], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [2**21, 3, 2], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [2**20, 2**20, 2], "the input would have the shape"),
        (("input", "shape"), [HUGE, 3, 2], "the input's shape must be a list of 3 whole numbers"),
        (("input", "margin"), 0.99, "the input's margin must be from 1 to 16; got 0.99"),
        (("input", "margin"), 16.5, "the input's margin must be from 1 to 16; got 16.5"),
        (("input", "margin"), HUGE, "the input's margin must be a positive number"),
        (("input", "margin"), True, "the input's margin must be a positive number"),
        (("input", "margin"), None, "the input's margin must be a positive number"),
        (("input", "top"), 0, "the input's top must be a positive number"),
        (("input", "top"), -1, "the input's top must be a positive number"),
        (("input", "top"), HUGE, "the input's top must be a positive number"),
        (("input", "top"), True, "the input's top must be a positive number"),
        (("input", "mean"), [0.5], "the input's mean must be a list of 2 numbers, one per channel"),
        (("input", "mean"), 0.5, "the input's mean must be a list of 2 numbers"),
        (("input", "mean"), [0, "0"], "the input's mean must be a number"),
        (("input", "mean"), [0, 1e39], "the input's mean must be a number"),
        (("input", "std"), [1, 0], "the input's std must be a positive number"),
        (("input", "std"), [1, 1e-60], "the input's std must be a positive number"),
        (("classes",), "abc", "classes must be a list of names"),
        (("classes",), ["a", "b"], r"the last value must have the shape 1 x 1 x 2 \(classes\); got \(1, 1, 3\)"),
        (("classes",), ["a", "b", 3], "a class must be a text"),
        (("tensors",), {}, "tensors must be a list"),
        (("tensors",), [0] * (MAX_ENTRIES + 1), f"tensors must be a list of at most {MAX_ENTRIES}"),
        (("tensors", 0), [], "tensor 0 must be an object with the keys type, shape, offset, bytes"),
        (("tensors", 0, "more"), 0, "tensor 0 must be an object"),
        (("tensors", 0, "type"), "f64", "tensor 0: type must be one of f32, f16, i32, bits; got 'f64'"),
        (("tensors", 0, "type"), [], "tensor 0: type must be one of"),
        (("tensors", 0, "shape"), 3, "tensor 0: shape must be a list"),
        (("tensors", 0, "shape"), [], "tensor 0: shape must be 1 to 4 numbers"),
        (("tensors", 0, "shape"), [3, 6, 3], "tensor 0: shape must be 1 to 4 numbers, and 2 for bits"),
        (("tensors", 1, "shape"), [1, 1, 1, 1, 2], "tensor 1: shape must be 1 to 4 numbers"),
        (("tensors", 0, "shape"), [3, 0], "tensor 0: a dimension must be a whole number from 1 to"),
        (("tensors", 0, "shape"), [3, 18.0], "tensor 0: a dimension must be a whole number"),
        (("tensors", 0, "shape"), [2**20 + 1, 18], "tensor 0: a dimension must be a whole number"),
        (("tensors", 0, "shape"), [2**20, 2**20], r"tensor 0: bits \[1048576, 1048576\] has 137438953472 bytes; got 9"),
        (("tensors", 1, "shape"), [2**20] * 4, "tensor 1: f32 .* has"),
        (("tensors", 0, "shape"), [3, 24], r"weight must have the shape \[out = 3, kh\*kw\*in/groups = 18\]"),
        (("tensors", 0, "bytes"), 8, r"tensor 0: bits \[3, 18\] has 9 bytes; got 8"),
        (("tensors", 0, "bytes"), -9, "tensor 0: bytes must be a whole number"),
        (("tensors", 0, "bytes"), 9.0, "tensor 0: bytes must be a whole number"),
        (("tensors", 0, "offset"), 0, "tensor 0: offset must be a whole number from"),
        (("tensors", 0, "offset"), -64, "tensor 0: offset must be a whole number from"),
        (("tensors", 0, "offset"), 2**63, "tensor 0: offset must be a whole number from"),
        (("tensors", 0, "offset"), "0", "tensor 0: offset must be a whole number from"),
        (("nodes",), None, "nodes must be a list"),
        (("nodes",), [], "nodes must be a list of 1 to"),
        (("nodes",), [{}] * (MAX_ENTRIES + 1), "nodes must be a list of at most"),
        (("nodes", 0), 7, "node 0 must be an object with the keys op, name, in"),
        (("nodes", 0, "in"), "del", "node 0 must be an object with the keys op, name, in"),
        (("nodes", 0, "op"), "bkonv", r"node 0 \('bkonv', 'b'\): no op is called 'bkonv'; the closest .*bconv"),
        (("nodes", 0, "op"), [], "node 0 .*: no op is called"),
        (("nodes", 0, "op"), TEXT, "node 0 .*: no op is called"),
        (("nodes", 0, "name"), 1, "node 0 .*: the name must be a text"),
        (("nodes", 0, "more"), 1, "node 0 .*: no key of this op is called 'more'"),
        (("nodes", 2, TEXT), 1, "node 2 .*: no key of this op is called 'xxx"),
        (("nodes", 2, "stride"), [1, 1], "node 2 .*: no key of this op is called 'stride'; there are none"),
        (("nodes", 0, "in"), [], "node 0 .*: its inputs must be a list of 1"),
        (("nodes", 0, "in"), [0, 0], "node 0 .*: its inputs must be a list of 1"),
        (("nodes", 0, "in"), 0, "node 0 .*: its inputs must be a list of 1"),
        (("nodes", 0, "in"), [1], "node 0 .*: its inputs must be earlier values, 0 to 0; got 1"),
        (("nodes", 1, "in"), [-1], "node 1 .*: its inputs must be earlier values, 0 to 1; got -1"),
        (("nodes", 1, "in"), [True], "node 1 .*: its inputs must be earlier values"),
        (("nodes", 2, "in"), [1], "every value except the last must be used; value 2 is not used"),
        (("nodes", 0, "a"), "del", "node 0 .*: the key 'a' is missing"),
        (("nodes", 0, "a"), 99, "node 0: a must be a whole number from 0 to 5; got 99"),
        (("nodes", 0, "a"), -1, "node 0: a must be a whole number from 0 to 5"),
        (("nodes", 0, "a"), "mean", "node 0: a must be a whole number"),
        (("nodes", 0, "a"), None, "node 0: a must be a whole number"),
        (("nodes", 0, "a"), True, "node 0: a must be a whole number"),
        (("nodes", 0, "a"), 0, r"node 0 .*: a must be f32 \[out\]; got bits \[3, 18\]"),
        (("nodes", 0, "a"), 1, r"node 0 .*: a must have the shape \[out = 3\]; got \[2\]"),
        (("nodes", 0, "weight"), 1, r"weight must be bits \[out, kh\*kw\*in/groups\]; got f32 \[2\]"),
        (("nodes", 0, "threshold"), "median", "node 0: threshold must be a whole number"),
        (("nodes", 0, "spatial"), 2, r"spatial must be f32 \[h', w', 1 or out\]; got f32 \[3\]"),
        (("nodes", 0, "pad_sign"), 2, "pad_sign must be a whole number from -1 to 1; got 2"),
        (("nodes", 0, "pad_sign"), 1.0, "pad_sign must be a whole number from -1 to 1"),
        (("nodes", 0, "kernel"), [3], "kernel must be a list of 2 whole numbers"),
        (("nodes", 0, "kernel"), [3, 0], "kernel must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "kernel"), [3, [3]], "kernel must be a list of 2 whole numbers"),
        (("nodes", 0, "kernel"), [1, 1], r"kh\*kw\*in/groups = 2\]; got \[3, 18\]"),
        (("nodes", 0, "kernel"), [2**20, 2**20], "the window spans 1048576 rows, but the map has 5 with its pad"),
        (("nodes", 0, "stride"), [0, 1], "stride must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "pad"), [1, 1, 1, -1], "pad must be a list of 4 whole numbers from 0"),
        (("nodes", 0, "pad"), [2**20] * 4, "its value would have the shape"),
        (("nodes", 0, "pad"), [2**16] * 4, "its value would have the shape"),
        (("nodes", 0, "dilation"), [1, 3], "the window spans 7 columns, but the map has 5 with its pad"),
        (("nodes", 0, "dilation"), [0, 1], "dilation must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "groups"), 2, "groups must divide the channels; got 2 for 2 in and 3 out"),
        (("nodes", 0, "groups"), 3, "groups must divide the channels; got 3 for 2 in and 3 out"),
        (("nodes", 0, "groups"), 0, "groups must be a whole number from 1"),
        (("nodes", 0, "groups"), HUGE, "groups must be a whole number from 1"),
    ],
    ids=count(),
)
def test_each_rule_of_the_graph_is_checked(path: tuple[Any, ...], value: Any, fault: str) -> None:
    graph = parse_graph(PADDED_DATA)
    make_setter(*path)(graph, value)
    assert_rejected(replace_padded_graph(graph, PADDED_DATA), fault)


@pytest.mark.parametrize("path", [("name",), ("writer",), ("classes", 1), ("nodes", 0, "name")])
def test_texts_that_utf8_cannot_encode_are_rejected(path: tuple[Any, ...]) -> None:
    graph = parse_graph(PADDED_DATA)
    make_setter(*path)(graph, "\ud800")
    assert_rejected(replace_padded_graph(graph, PADDED_DATA), "must be a text of UTF-8")


REPLACEMENT_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    63,
    64,
    2**20,
    2**31,
    2**64,
    0.5,
    1e300,
    "",
    "mean",
    "conv",
    [],
    {},
    [0],
]


def mutate(rng: np.random.Generator, value: Any) -> Any:
    """Return a JSON value with one random change: replaced, deleted, duplicated, renamed or copied."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[rng.integers(len(keys))]
        draw = rng.random()
        if draw < 0.8:
            value[key] = mutate(rng, value[key])
        elif draw < 0.86:
            del value[key]
        elif draw < 0.93:
            value[key] = value[keys[rng.integers(len(keys))]]
        elif isinstance(value, list):
            value.insert(key, value[key])
        else:
            value[["op", "in", "weight", "stride", "more"][rng.integers(5)]] = value.pop(key)
        return value
    if isinstance(value, int) and rng.random() < 0.5:
        return value + int(rng.integers(-2, 3)) * int(rng.choice([1, 1, 64]))
    return REPLACEMENT_VALUES[rng.integers(len(REPLACEMENT_VALUES))]


@pytest.mark.parametrize(
    ("model", "rounds"),
    [(SMALL_MODEL, 2000), (make_model_with_every_op(RNG(0)), 500), (make_version_2_model(RNG(0)), 500)],
    ids=["small", "every op", "version 2"],
)
def test_random_graph_changes_are_rejected_or_give_a_valid_model(model: BnnModel, rounds: int) -> None:
    """Recompute the checksum, so that later checks are reached. An accepted model can be written again."""
    rng, passed, reasons = RNG(5), 0, set()
    base = add_graph_padding(to_bytes(model), 2048)
    for _ in range(rounds):
        graph = mutate(rng, parse_graph(base))
        if rng.random() < 0.3:
            graph = mutate(rng, graph)
        try:
            model = from_bytes(replace_padded_graph(graph, base), "f")
        except InputError as error:
            reasons.add(re.sub(r"[\d']+", "", str(error))[:60])
        else:
            passed += 1
            rewritten = to_bytes(model)
            assert to_bytes(from_bytes(rewritten, "f")) == rewritten
            if math.prod(infer_shapes(model)[0]) < 1000 and max(map(math.prod, infer_shapes(model))) < 10_000:
                reference.compute_outputs(model, np.zeros((1, *model.shape), np.float32))
    assert passed > 20
    assert len(reasons) > 50  # later checks were reached
