"""ONNX_RULES_2: ONNX nodes for the operators of version 2 of the file format.

A value (h, w, c) is (n, c, h, w) in ONNX. A constant has one image, which every use broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from lcrbnn.deploy.engine.graph import Node
from lcrbnn.deploy.export.graph.layouts import Shape

TO_CHANNELS_LAST, TO_CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


class OnnxNodes(Protocol):
    """The part of an ONNX graph that the rules need."""

    def add_constant(self, value: np.ndarray) -> str:
        """Add an array and return its name."""

    def add_node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""

    def add_channel_constant(self, value: np.ndarray) -> str:
        """Add per-channel numbers, shaped for (n, c, h, w), and return their name."""


OnnxRule = Callable[[OnnxNodes, Node, list[str], Sequence[Shape], Shape], str]


def _add_number(graph: OnnxNodes, number: float) -> str:
    return graph.add_constant(np.array(number, np.float32))


def _add_integers(graph: OnnxNodes, integers: Sequence[int]) -> str:
    return graph.add_constant(np.array(integers, np.int64))


def _make_plain_rule(op: str, **attributes: float) -> OnnxRule:
    return lambda graph, node, inputs, shapes, shape: graph.add_node(op, *inputs, **attributes)


def _write_constant(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    value = node.attributes["value"].astype(np.float32).transpose(2, 0, 1)[None]
    return graph.add_node("Identity", graph.add_constant(value))


def _write_clamp(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    limits = [_add_number(graph, node.attributes[key]) if key in node.attributes else "" for key in ("low", "high")]
    return graph.add_node("Clip", inputs[0], *limits)


def _write_elu(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    return graph.add_node("Elu", inputs[0], alpha=float(node.attributes["alpha"]))


def _write_silu(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    return graph.add_node("Mul", inputs[0], graph.add_node("Sigmoid", inputs[0]))


def _write_gelu(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    half = graph.add_node("Mul", inputs[0], _add_number(graph, 0.5))
    erf = graph.add_node("Erf", graph.add_node("Mul", inputs[0], _add_number(graph, sqrt(0.5))))
    return graph.add_node("Mul", half, graph.add_node("Add", erf, _add_number(graph, 1)))


def _write_gelu_tanh(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    (x,) = inputs
    half = graph.add_node("Mul", x, _add_number(graph, 0.5))
    cube = graph.add_node("Mul", graph.add_node("Mul", x, x), graph.add_node("Mul", x, _add_number(graph, 0.044715)))
    inner = graph.add_node("Mul", graph.add_node("Add", x, cube), _add_number(graph, sqrt(2 / np.pi)))
    return graph.add_node("Mul", half, graph.add_node("Add", graph.add_node("Tanh", inner), _add_number(graph, 1)))


def _write_matmul(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    left = graph.add_node("Transpose", inputs[0], perm=TO_CHANNELS_LAST)
    right_axes = [0, 2, 1, 3] if node.attributes["transpose"] else TO_CHANNELS_LAST
    product = graph.add_node("MatMul", left, graph.add_node("Transpose", inputs[1], perm=right_axes))
    return graph.add_node("Transpose", product, perm=TO_CHANNELS_FIRST)


def _write_take(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    y = inputs[0]
    for key, axis in (("rows", 2), ("columns", 3), ("channels", 1)):
        if key not in node.attributes:
            continue
        indices = node.attributes[key].astype(np.int64)
        y = graph.add_node("Gather", y, graph.add_constant(np.maximum(indices, 0)), axis=axis)
        if (indices < 0).any():
            mask_shape = [1, 1, 1, 1]
            mask_shape[axis] = len(indices)
            mask = graph.add_constant((indices >= 0).reshape(mask_shape))
            y = graph.add_node("Where", mask, y, _add_number(graph, node.attributes.get("fill", 0.0)))
    return y if y != inputs[0] else graph.add_node("Identity", y)


def _write_strided(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    channels_last = graph.add_node("Transpose", inputs[0], perm=TO_CHANNELS_LAST)
    flat = graph.add_node("Reshape", channels_last, _add_integers(graph, [-1, prod(shapes[0])]))
    indices = np.array(node.attributes["offset"], np.int64)
    for length, stride in zip(node.attributes["lengths"], node.attributes["strides"], strict=True):
        indices = indices[..., None] + np.arange(length) * stride
    indices = indices.reshape(-1)
    if not np.array_equal(indices, np.arange(prod(shapes[0]))):
        flat = graph.add_node("Gather", flat, graph.add_constant(indices), axis=1)
    return graph.add_node(
        "Transpose", graph.add_node("Reshape", flat, _add_integers(graph, [-1, *shape])), perm=TO_CHANNELS_FIRST
    )


def _write_normalize(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    (h, w, c), groups = shape, node.attributes["groups"]
    axes = [2, 3] if node.attributes["spatial"] else [2]
    x = graph.add_node("Reshape", inputs[0], _add_integers(graph, [-1, groups, c // groups, h * w]))
    centered = graph.add_node("Sub", x, graph.add_node("ReduceMean", x, axes=axes, keepdims=1))
    variance = graph.add_node("ReduceMean", graph.add_node("Mul", centered, centered), axes=axes, keepdims=1)
    deviation = graph.add_node("Sqrt", graph.add_node("Add", variance, _add_number(graph, node.attributes["eps"])))
    y = graph.add_node("Reshape", graph.add_node("Div", centered, deviation), _add_integers(graph, [-1, c, h, w]))
    scaled = graph.add_node("Mul", y, graph.add_channel_constant(node.attributes["a"]))
    return graph.add_node("Add", scaled, graph.add_channel_constant(node.attributes["b"]))


def _write_resizing(graph: OnnxNodes, node: Node, inputs: list[str], shapes: Sequence[Shape], shape: Shape) -> str:
    """Write a product with a matrix for the rows and one for the columns, which represents every resizing exactly."""
    (h, w, _), (rows, columns, _) = shapes[0], shape
    taller = graph.add_node("MatMul", graph.add_constant(_make_resizing_matrix(node, h, rows)), inputs[0])
    return graph.add_node("MatMul", taller, graph.add_constant(_make_resizing_matrix(node, w, columns).T))


def _make_resizing_matrix(node: Node, size: int, resized: int) -> np.ndarray:
    """Return the matrix (resized, size) of a bilinear resizing or an adaptive average pool along one axis."""
    unit_columns = torch.eye(size, dtype=torch.float64)[None, None]
    if node.op == "bilinear":
        align_corners = bool(node.attributes["align_corners"])
        columns = F.interpolate(unit_columns, (resized, size), mode="bilinear", align_corners=align_corners)
    else:
        columns = F.adaptive_avg_pool2d(unit_columns, (resized, size))
    matrix: np.ndarray = columns[0, 0].numpy().astype(np.float32)
    return matrix


ONNX_RULES_2: dict[str, OnnxRule] = {
    "multiply": _make_plain_rule("Mul"),
    "matmul": _write_matmul,
    "constant": _write_constant,
    "clamp": _write_clamp,
    "sigmoid": _make_plain_rule("Sigmoid"),
    "tanh": _make_plain_rule("Tanh"),
    "gelu": _write_gelu,
    "gelu_tanh": _write_gelu_tanh,
    "silu": _write_silu,
    "hardsigmoid": _make_plain_rule("HardSigmoid", alpha=1 / 6, beta=0.5),
    "hardswish": _make_plain_rule("HardSwish"),
    "elu": _write_elu,
    "take": _write_take,
    "strided": _write_strided,
    "normalize": _write_normalize,
    "bilinear": _write_resizing,
    "adaptive_avgpool": _write_resizing,
}
