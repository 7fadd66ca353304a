"""Small models that need version 2 of the file format: every operator, broadcasting and several outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node
from tests.deploy.engine.small_models import Generator, draw_attributes, draw_normal, make_model, make_window

NodeRow = tuple[str, tuple[int, ...], dict[str, Any]]  # operator, inputs, attributes
ACTIVATIONS = ("sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardsigmoid", "hardswish")


def make_nodes(rows: list[NodeRow]) -> list[Node]:
    """Return the nodes of these rows; each name is the operator and the index."""
    return [Node(op, f"{op} {i}", inputs, keys) for i, (op, inputs, keys) in enumerate(rows)]


def draw_indices(rng: Generator, count: int, size: int) -> np.ndarray:
    """Return random indices from −1 to size − 1."""
    return rng.integers(-1, size, count).astype(np.int32)


def draw_normalize(rng: Generator, channels: int, groups: int, *, spatial: bool) -> dict[str, Any]:
    scales = {"a": draw_normal(rng, channels), "b": draw_normal(rng, channels)}
    return {"groups": groups, "spatial": int(spatial), "eps": 1e-5, **scales}


def draw_version_2_node(graph: Any, op: str, value: int) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return random attributes, inputs and the output shape of an operator of version 2 for a RandomGraph."""
    rng, shape = graph.rng, graph.shapes[value]
    h, w, c = shape
    if op == "multiply":
        fitting = [
            i
            for i, other in enumerate(graph.shapes)
            if all(a == b or 1 in (a, b) for a, b in zip(shape, other, strict=True))
        ]
        other = int(rng.choice(fitting))
        inputs = (value, other) if rng.random() < 0.5 else (other, value)
        return {}, inputs, tuple(np.broadcast_shapes(shape, graph.shapes[other]))
    if op == "constant":
        sizes = [size if rng.random() < 0.6 else 1 for size in shape]
        dtype = np.float16 if rng.random() < 0.3 else np.float32
        return {"value": draw_normal(rng, *sizes).astype(dtype)}, (), tuple(sizes)
    if op == "matmul":
        for other, (other_h, rows, columns) in enumerate(graph.shapes):
            if other_h == h and c in (rows, columns) and rng.random() < 0.5:
                transpose = int(columns == c)
                return {"transpose": transpose}, (value, other), (h, w, rows if transpose else columns)
        return {"transpose": 1}, (value, value), (h, w, w)
    if op == "clamp":
        keys = {"low": float(rng.normal() - 1), "high": float(rng.normal() + 1)}
        return {key: number for key, number in keys.items() if rng.random() < 0.8}, (value,), shape
    if op == "elu":
        return {"alpha": float(rng.normal())}, (value,), shape
    if op == "take":
        axes = dict(zip(("rows", "columns", "channels"), shape, strict=True))
        keys = {
            key: draw_indices(rng, int(rng.integers(1, 9)), size) for key, size in axes.items() if rng.random() < 0.5
        }
        sizes = [len(keys.get(key, range(size))) for key, size in axes.items()]
        return keys | ({"fill": float(rng.normal())} if rng.random() < 0.5 else {}), (value,), tuple(sizes)
    if op == "strided":
        return draw_strided(rng, shape, value)
    if op == "normalize":
        groups = int(rng.choice([g for g in range(1, c + 1) if c % g == 0]))
        return draw_normalize(rng, c, groups, spatial=rng.random() < 0.5), (value,), shape
    if op in ("bilinear", "adaptive_avgpool"):
        size = (int(rng.integers(1, 12)), int(rng.integers(1, 12)))
        keys = {"size": size} | ({"align_corners": int(rng.integers(2))} if op == "bilinear" else {})
        return keys, (value,), (*size, c)
    return {}, (value,), shape


def draw_strided(
    rng: Generator, shape: tuple[int, ...], value: int
) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return a reshape, a permutation, or random strides inside the input."""
    sizes, steps = list(shape), [shape[1] * shape[2], shape[2], 1]
    order = rng.permutation(3)
    draw = rng.random()
    if draw < 0.3:
        count = int(np.prod(shape))
        keys = {"lengths": (count,), "strides": (1,), "offset": 0}
        new_shape = (1, shape[0], count // shape[0])
    elif draw < 0.7:
        keys = {
            "lengths": tuple(int(sizes[i]) for i in order),
            "strides": tuple(int(steps[i]) for i in order),
            "offset": 0,
        }
        new_shape = tuple(keys["lengths"])
    else:
        lengths, strides = rng.integers(1, 5, 3), rng.integers(-2, 3, 3)
        ends = (lengths - 1) * strides
        first, last = int(np.minimum(ends, 0).sum()), int(np.maximum(ends, 0).sum())
        if last - first >= int(np.prod(shape)):
            strides, first, last = np.zeros(3, int), 0, 0
        offset = int(rng.integers(-first, int(np.prod(shape)) - last))
        keys = {"lengths": tuple(map(int, lengths)), "strides": tuple(map(int, strides)), "offset": offset}
        new_shape = (int(lengths[0]), 1, int(lengths[1] * lengths[2]))
    return {"shape": new_shape, **keys}, (value,), new_shape


def make_attention_model(rng: Generator) -> BnnModel:
    """Return two heads of attention for 3 tokens of 4 numbers, with a class token, positions and layer norms."""
    tokens, width = 4, 4
    to_heads = {"shape": (2, tokens, 2), "lengths": (2, tokens, 2), "strides": (2, width, 1), "offset": 0}
    from_heads = {"shape": (1, tokens, width), "lengths": (tokens, 2, 2), "strides": (2, 2 * tokens, 1), "offset": 0}
    norm = draw_normalize(rng, width, 1, spatial=False)
    rows: list[NodeRow] = [
        ("take", (0,), {"columns": np.arange(-1, 3, dtype=np.int32)}),
        ("constant", (), {"value": draw_normal(rng, 1, tokens, width)}),
        ("add", (1, 2), {}),
        ("normalize", (3,), norm),
        ("bconv", (4,), draw_attributes(rng, "bconv", width, width, make_window())),
        ("bconv", (4,), draw_attributes(rng, "bconv", width, width, make_window())),
        ("strided", (5,), to_heads),
        ("strided", (6,), to_heads),
        ("matmul", (7, 8), {"transpose": 1}),
        ("softmax", (9,), {}),
        ("matmul", (10, 8), {"transpose": 0}),
        ("strided", (11,), from_heads),
        ("add", (12, 3), {}),
        ("gelu", (13,), {}),
        ("bconv", (14,), draw_attributes(rng, "bconv", width, width, make_window())),
        ("multiply", (15, 13), {}),
        ("tanh", (16,), {}),
        ("take", (17,), {"columns": np.zeros(1, np.int32)}),
    ]
    return make_model((1, 3, width), *make_nodes(rows))


def make_broadcast_model(rng: Generator) -> BnnModel:
    """Return a model that broadcasts each dimension, with views as inputs and as outputs."""
    rows: list[NodeRow] = [
        ("conv", (0,), draw_attributes(rng, "conv", 2, 3, make_window((3, 3), pad=(1, 1, 1, 1)))),
        ("mean", (1,), {}),
        ("sigmoid", (2,), {}),
        ("multiply", (1, 3), {}),
        ("constant", (), {"value": draw_normal(rng, 3, 1, 1)}),
        ("add", (5, 4), {}),
        ("take", (6,), {"channels": np.array([1], np.int32)}),
        ("multiply", (7, 6), {}),
        ("bilinear", (8,), {"size": (3, 5), "align_corners": 1}),
        ("strided", (9,), {"shape": (1, 15, 3), "lengths": (45,), "strides": (1,), "offset": 0}),
        ("normalize", (10,), draw_normalize(rng, 3, 3, spatial=True)),
        ("adaptive_avgpool", (11,), {"size": (2, 4)}),
        ("clamp", (12,), {"low": -0.5, "high": 0.5}),
        ("elu", (13,), {"alpha": 1.5}),
    ]
    model = make_model((3, 4, 2), *make_nodes(rows))
    outputs = (ModelOutput("logits", 15), ModelOutput("view", 10), ModelOutput("constant", 5), ModelOutput("map", 6))
    return dataclasses.replace(model, outputs=outputs)


def make_version_2_model(rng: Generator) -> BnnModel:
    """Return a model with each operator of version 2, with and without each optional attribute, and three outputs."""
    rows: list[NodeRow] = [
        ("take", (0,), {"rows": draw_indices(rng, 9, 7), "channels": draw_indices(rng, 4, 3), "fill": 0.5}),
        ("take", (1,), {"columns": draw_indices(rng, 6, 6)}),
        ("constant", (), {"value": draw_normal(rng, 9, 1, 4)}),
        ("constant", (), {"value": draw_normal(rng, 1, 6, 1).astype(np.float16)}),
        ("add", (2, 3), {}),
        ("multiply", (4, 5), {}),
        ("normalize", (6,), draw_normalize(rng, 4, 2, spatial=True)),
        ("clamp", (7,), {"low": -1.5}),
        ("clamp", (8,), {"low": -1.0, "high": 1.25}),
        ("strided", (9,), {"shape": (4, 9, 6), "lengths": (4, 9, 6), "strides": (1, 24, 4), "offset": 0}),
        ("strided", (9,), {"shape": (4, 6, 2), "lengths": (48,), "strides": (-2,), "offset": 150}),
        ("matmul", (10, 11), {"transpose": 0}),
        ("matmul", (10, 10), {"transpose": 1}),
        ("softmax", (13,), {}),
        ("bilinear", (14,), {"size": (5, 3), "align_corners": 0}),
        ("bilinear", (12,), {"size": (5, 3), "align_corners": 1}),
        ("adaptive_avgpool", (15,), {"size": (3, 4)}),
        ("elu", (17,), {"alpha": 0.75}),
        *((op, (18 + index,), {}) for index, op in enumerate(ACTIVATIONS)),
        ("bconv", (25,), draw_attributes(rng, "bconv", 9, 3, make_window((3, 3), pad=(1, 1, 1, 1)))),
        ("mean", (26,), {}),
        ("mean", (16,), {}),
    ]
    model = make_model((7, 6, 3), *make_nodes(rows))
    outputs = (ModelOutput("logits", 27), ModelOutput("map", 26), ModelOutput("end", len(model.nodes)))
    return dataclasses.replace(model, outputs=outputs, classes=("a", "b", "c"))
