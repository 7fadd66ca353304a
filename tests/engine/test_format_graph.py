"""Each rule of docs/format.md for the graph broken once; and thousands of graphs changed at random."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from lcrbnn.engine import reference
from lcrbnn.engine.check import COUNT, shapes
from lcrbnn.engine.format import Model, from_bytes, to_bytes
from lcrbnn.errors import InputError
from tests.engine import every_op
from tests.engine.files import RNG, ROOMY, SMALL, Graph, graph_of, refused, roomy, with_graph


def change(*path: Any) -> Callable[[Graph, Any], None]:
    """Set the value at a path of the graph; a value of `del` takes it away."""

    def apply(graph: Any, value: Any) -> None:
        for step in path[:-1]:
            graph = graph[step]
        if value == "del":
            del graph[path[-1]]
        else:
            graph[path[-1]] = value

    return apply


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
        (("input", "margin"), 0.99, "the input's margin is from 1 to 16; got 0.99"),
        (("input", "margin"), 16.5, "the input's margin is from 1 to 16; got 16.5"),
        (("input", "margin"), HUGE, "the input's margin must be a positive number"),
        (("input", "margin"), True, "the input's margin must be a positive number"),
        (("input", "margin"), None, "the input's margin must be a positive number"),
        (("input", "top"), 0, "the input's top must be a positive number"),
        (("input", "top"), -1, "the input's top must be a positive number"),
        (("input", "top"), HUGE, "the input's top must be a positive number"),
        (("input", "top"), True, "the input's top must be a positive number"),
        (("input", "mean"), [0.5], "the input's mean is a list of 2, one a channel"),
        (("input", "mean"), 0.5, "the input's mean is a list of 2"),
        (("input", "mean"), [0, "0"], "the input's mean must be a number"),
        (("input", "mean"), [0, 1e39], "the input's mean must be a number"),
        (("input", "std"), [1, 0], "the input's std must be a positive number"),
        (("input", "std"), [1, 1e-60], "the input's std must be a positive number"),
        (("classes",), "abc", "classes are a list of names"),
        (("classes",), ["a", "b"], r"the last value must be 1 x 1 x classes, here 2; its shape is \(1, 1, 3\)"),
        (("classes",), ["a", "b", 3], "a class must be a text"),
        (("tensors",), {}, "tensors must be a list"),
        (("tensors",), [0] * (COUNT + 1), f"tensors must be a list of at most {COUNT}"),
        (("tensors", 0), [], "tensor 0 must be an object with the keys type, shape, offset, bytes"),
        (("tensors", 0, "more"), 0, "tensor 0 must be an object"),
        (("tensors", 0, "type"), "f64", "tensor 0: type must be one of f32, f16, bits; got 'f64'"),
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
        (("nodes",), [], "nodes are a list of 1 to"),
        (("nodes",), [{}] * (COUNT + 1), "nodes must be a list of at most"),
        (("nodes", 0), 7, "node 0 must be an object with the keys op, name, in"),
        (("nodes", 0, "in"), "del", "node 0 must be an object with the keys op, name, in"),
        (("nodes", 0, "op"), "bkonv", r"node 0 \('bkonv', 'b'\): no op is called 'bkonv'; .*did you mean 'bconv'"),
        (("nodes", 0, "op"), [], "node 0 .*: no op is called"),
        (("nodes", 0, "op"), TEXT, "node 0 .*: no op is called"),
        (("nodes", 0, "name"), 1, "node 0 .*: the name must be a text"),
        (("nodes", 0, "more"), 1, "node 0 .*: no key of this op is called 'more'"),
        (("nodes", 2, TEXT), 1, "node 2 .*: no key of this op is called 'xxx"),
        (("nodes", 2, "stride"), [1, 1], "node 2 .*: no key of this op is called 'stride'; there are none"),
        (("nodes", 0, "in"), [], "node 0 .*: its inputs are a list of 1"),
        (("nodes", 0, "in"), [0, 0], "node 0 .*: its inputs are a list of 1"),
        (("nodes", 0, "in"), 0, "node 0 .*: its inputs are a list of 1"),
        (("nodes", 0, "in"), [1], "node 0 .*: its inputs are earlier values, 0 to 0; got 1"),
        (("nodes", 1, "in"), [-1], "node 1 .*: its inputs are earlier values, 0 to 1; got -1"),
        (("nodes", 1, "in"), [True], "node 1 .*: its inputs are earlier values"),
        (("nodes", 2, "in"), [1], "every value but the last must be used; nothing uses value 2"),
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
        (("nodes", 0, "kernel"), [2**20, 2**20], "the window spans 1048576 rows; with its pad the map has 5"),
        (("nodes", 0, "stride"), [0, 1], "stride must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "pad"), [1, 1, 1, -1], "pad must be a list of 4 whole numbers from 0"),
        (("nodes", 0, "pad"), [2**20] * 4, "its value would have the shape"),
        (("nodes", 0, "pad"), [2**16] * 4, "its value would have the shape"),
        (("nodes", 0, "dilation"), [1, 3], "the window spans 7 columns; with its pad the map has 5"),
        (("nodes", 0, "dilation"), [0, 1], "dilation must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "groups"), 2, "groups must divide the channels; got 2 for 2 in and 3 out"),
        (("nodes", 0, "groups"), 3, "groups must divide the channels; got 3 for 2 in and 3 out"),
        (("nodes", 0, "groups"), 0, "groups must be a whole number from 1"),
        (("nodes", 0, "groups"), HUGE, "groups must be a whole number from 1"),
    ],
    ids=count(),
)
def test_each_rule_of_the_graph_is_checked(path: tuple[Any, ...], value: Any, fault: str) -> None:
    graph = graph_of(ROOMY)
    change(*path)(graph, value)
    refused(with_graph(graph, ROOMY), fault)


@pytest.mark.parametrize("path", [("name",), ("writer",), ("classes", 1), ("nodes", 0, "name")])
def test_texts_that_utf8_cannot_hold_are_refused(path: tuple[Any, ...]) -> None:
    graph = graph_of(ROOMY)
    change(*path)(graph, "\ud800")
    refused(with_graph(graph, ROOMY), "must be a text of UTF-8")


WORDS: list[Any] = [
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
    """Change one place of a JSON value: replaced, taken away, doubled, renamed, or another one's."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        place = places[rng.integers(len(places))]
        how = rng.random()
        if how < 0.8:
            value[place] = mutate(rng, value[place])
        elif how < 0.86:
            del value[place]
        elif how < 0.93:
            value[place] = value[places[rng.integers(len(places))]]
        elif isinstance(value, list):
            value.insert(place, value[place])
        else:
            value[["op", "in", "weight", "stride", "more"][rng.integers(5)]] = value.pop(place)
        return value
    if isinstance(value, int) and rng.random() < 0.5:
        return value + int(rng.integers(-2, 3)) * int(rng.choice([1, 1, 64]))
    return WORDS[rng.integers(len(WORDS))]


@pytest.mark.parametrize(("model", "rounds"), [(SMALL, 2000), (every_op(RNG(0)), 500)], ids=["small", "every op"])
def test_a_changed_graph_is_refused_or_is_a_model(model: Model, rounds: int) -> None:
    """With the checksum made anew, so that the deep checks are reached. A model that passes can be written again."""
    rng, passed, told = RNG(5), 0, set()
    base = roomy(to_bytes(model), 2048)
    for _ in range(rounds):
        graph = mutate(rng, graph_of(base))
        if rng.random() < 0.3:
            graph = mutate(rng, graph)
        try:
            model = from_bytes(with_graph(graph, base), "f")
        except InputError as error:
            told.add(re.sub(r"[\d']+", "", str(error))[:60])
        else:
            passed += 1
            again = to_bytes(model)
            assert to_bytes(from_bytes(again, "f")) == again
            if math.prod(shapes(model)[0]) < 1000 and max(map(math.prod, shapes(model))) < 10_000:
                reference.run(model, np.zeros((1, *model.shape), np.float32))
    assert passed > 20
    assert len(told) > 50  # the deep checks were reached
