"""Rules for sums, differences, products and quotients of maps, numbers and constant tensors, with broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.channel_rows import ChannelRows, match_channel_rows
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import Layout
from lcrbnn.deploy.export.rules.constant_calls import make_constant

FunctionRow = tuple[tuple[Any, ...], Callable[..., Any]]


def add_values(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    """Return the sum of two values, or of a value and a constant."""
    if isinstance(input, Value) and isinstance(other, Value):
        return combine_values(builder, name, "add", input, other)
    x, constant = (input, other) if isinstance(input, Value) else (other, input)
    rows = _match_constant(builder, name, x, constant)
    if rows is None:
        return combine_values(builder, name, "add", x, _make_operand(builder, name, x, constant))
    numbers, shape_for_torch = _per_channel_numbers(rows, constant)
    return builder.add_node("shift", name, rows.value, torch_function=lambda v: v + shape_for_torch(v), b=numbers)


def multiply_values(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    """Return the product of two values, or of a value and a constant."""
    if isinstance(input, Value) and isinstance(other, Value):
        return combine_values(builder, name, "multiply", input, other)
    x, constant = (input, other) if isinstance(input, Value) else (other, input)
    rows = _match_constant(builder, name, x, constant)
    if rows is None:
        return combine_values(builder, name, "multiply", x, _make_operand(builder, name, x, constant))
    a, shape_for_torch = _per_channel_numbers(rows, constant)
    return builder.add_node(
        "affine", name, rows.value, torch_function=lambda v: v * shape_for_torch(v), a=a, b=np.zeros(len(a))
    )


def combine_values(builder: GraphBuilder, name: str, op: str, a: Value, b: Value) -> Value:
    """Add a node of two values, with PyTorch's broadcasting; the larger value keeps its layout."""
    a, b = builder.resolve(a, name), builder.resolve(b, name)
    if _have_same_layout(a, b):
        return builder.add_node(op, name, [a, b])
    rank = max(len(a.torch_shape), len(b.torch_shape))
    axes = {rank - len(v.torch_shape) + v.layout.batch_axis for v in (a, b)}
    sizes = {v.torch_shape[v.layout.batch_axis] for v in (a, b)}
    if len(axes) != 1 or len(sizes) != 1:
        raise_export_error(
            name,
            f"it combines tensors of the shapes {describe_shape(a)} and {describe_shape(b)}, whose axes of the images "
            "(n) do not match",
        )
    shape = np.broadcast_shapes(a.torch_shape, b.torch_shape)
    largest = [v for v in (a, b) if v.torch_shape == shape]
    if largest:
        layout = builder.arrange_permutation(largest[0], name)
        places, stored_shape, result_layout = layout.layout.indices, layout.shape, layout.layout
        operands = [layout if v is largest[0] else v for v in (a, b)]
    else:
        result_layout = Layout(shape, axes.pop())
        places, stored_shape, operands = result_layout.indices, result_layout.standard_shape, [a, b]
    arranged = [
        v if v.layout is result_layout else _broadcast_to_places(builder, name, v, places, stored_shape)
        for v in operands
    ]
    return builder.add_node(op, name, arranged, stored_shape, layout=result_layout)


def _have_same_layout(a: Value, b: Value) -> bool:
    if a.torch_shape != b.torch_shape or a.shape != b.shape or a.layout.batch_axis != b.layout.batch_axis:
        return False
    stored = [v.layout.stored_indices for v in (a, b)]
    are_equal = stored[0] is stored[1] or (
        stored[0] is not None and stored[1] is not None and np.array_equal(stored[0], stored[1])
    )
    return are_equal and a.layout.is_permutation and a.layout.indices.size == np.prod(a.shape)


def _broadcast_to_places(
    builder: GraphBuilder, name: str, value: Value, places: np.ndarray, stored_shape: tuple[int, int, int]
) -> Value:
    """Return a value whose elements lie where the node reads them; axes of equal elements have length 1."""
    target = np.empty(places.size, np.int32)
    target[places.reshape(-1)] = np.broadcast_to(value.layout.indices, places.shape).reshape(-1)
    target = target.reshape(stored_shape)
    for axis in range(3):
        first = target.take([0], axis)
        if (target == first).all():
            target = first
    return builder.arrange(value, name, target, Layout((1, *target.shape)))


def describe_shape(value: Value) -> str:
    """Return the shape of PyTorch's tensor with n for the number of images."""
    sizes: list[str] = list(map(str, value.torch_shape))
    axis = value.layout.batch_axis
    sizes[axis] = "n" if value.torch_shape[axis] == 1 else f"{sizes[axis]} n"
    return f"({', '.join(sizes)})"


def _match_constant(builder: GraphBuilder, name: str, x: Value, constant: Any) -> ChannelRows | None:
    """Return the rows along which a constant has one number per channel; None if it has another shape."""
    x = builder.resolve(x, name)
    if isinstance(constant, Tensor) and constant.numel() > 1:
        padded_shape = _pad_shape(name, x, constant)
        axes = [axis for axis, size in enumerate(padded_shape) if size > 1]
        axis = axes[0]
        if len(axes) > 1 or padded_shape[axis] != x.torch_shape[axis]:
            return None
        return match_channel_rows(x, axis, keeps_order=False)
    if not isinstance(constant, int | float | Tensor):
        raise TypeError(f"{constant!r} is not a number")
    return ChannelRows(builder.arrange_permutation(x, name), -1, None, None)


def _pad_shape(name: str, x: Value, constant: Tensor) -> tuple[int, ...]:
    """Return the shape of a constant with as many axes as the tensor."""
    missing = len(x.torch_shape) - constant.dim()
    shape = (1,) * missing + tuple(constant.shape)
    if missing < 0 or shape[x.layout.batch_axis] != 1:
        raise_export_error(
            name,
            f"it combines a constant of the shape {tuple(constant.shape)} with a tensor of the shape "
            f"{describe_shape(x)}; the constant must have the size 1 where the tensor has the images (n), and "
            "no more axes",
        )
    return shape


def _per_channel_numbers(rows: ChannelRows, constant: Any) -> tuple[np.ndarray, Callable[[Tensor], Any]]:
    """Return a constant as one number per stored channel, and a function that shapes it for PyTorch."""
    channels = rows.value.shape[2]
    if isinstance(constant, int | float):
        return np.full(channels, float(constant)), lambda v: constant
    per_channel = constant.reshape(-1).expand(channels)
    return rows.reorder(
        to_array(per_channel).astype(np.float64)
    ), lambda v: per_channel if v.dim() == 2 else per_channel[:, None, None]


def _make_operand(builder: GraphBuilder, name: str, x: Value, constant: Tensor) -> Value:
    shape = _pad_shape(name, x, constant)
    return make_constant(
        builder, f"{name}.constant", to_array(constant.reshape(shape)).astype(np.float64), x.layout.batch_axis
    )


def _export_add(builder: GraphBuilder, name: str, input: Any, other: Any, *, alpha: float = 1) -> Value:
    if alpha != 1:
        other = _export_multiply(builder, f"{name}.alpha", other, alpha) if isinstance(other, Value) else other * alpha
    return add_values(builder, name, input, other)


def _export_subtract(builder: GraphBuilder, name: str, input: Any, other: Any, *, alpha: float = 1) -> Value:
    if not isinstance(other, Value):
        return _export_add(builder, name, input, -other, alpha=alpha)
    x = builder.resolve(other, name)
    rows = None if isinstance(input, Value) or alpha != 1 else _match_constant(builder, name, x, input)
    if rows is None:
        return add_values(builder, name, input, _export_multiply(builder, f"{name}.negative", x, -alpha))
    b, shape_for_torch = _per_channel_numbers(rows, input)
    return builder.add_node(
        "affine", name, rows.value, torch_function=lambda v: shape_for_torch(v) - v, a=-np.ones(len(b)), b=b
    )


def _export_reversed_subtract(builder: GraphBuilder, name: str, input: Any, other: Any, *, alpha: float = 1) -> Value:
    return _export_subtract(builder, name, other, input, alpha=alpha)


def _export_negate(builder: GraphBuilder, name: str, input: Value) -> Value:
    return _export_multiply(builder, name, input, -1)


def _export_multiply(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    return multiply_values(builder, name, input, other)


def _export_divide(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    if isinstance(other, Value):
        raise ValueError("it divides by a map")
    if not bool(torch.as_tensor(other).all()):
        raise ValueError("it divides by 0")
    rows = _match_constant(builder, name, input, other)
    if rows is None:
        return multiply_values(builder, name, input, 1 / other.double())
    a, shape_for_torch = _per_channel_numbers(rows, other)
    return builder.add_node(
        "affine", name, rows.value, torch_function=lambda v: v / shape_for_torch(v), a=1 / a, b=np.zeros(len(a))
    )


def _export_power(builder: GraphBuilder, name: str, input: Any, exponent: Any) -> Value:
    if not isinstance(input, Value) or exponent not in (2, 3):
        raise ValueError("the only powers that can be exported are x ** 2 and x ** 3")
    square = multiply_values(builder, name, input, input)
    return square if exponent == 2 else multiply_values(builder, f"{name}.cube", square, input)


def _export_addcmul(
    builder: GraphBuilder, name: str, input: Any, tensor1: Any, tensor2: Any, *, value: float = 1
) -> Value:
    """Export input + value * tensor1 * tensor2."""
    if isinstance(tensor1, Value) or isinstance(tensor2, Value):
        product = multiply_values(builder, f"{name}.product", tensor1, tensor2)
        return _export_add(builder, name, input, product, alpha=value)
    return _export_add(builder, name, input, tensor1 * tensor2 * value)


def _export_square(builder: GraphBuilder, name: str, input: Value) -> Value:
    return _export_power(builder, name, input, 2)


def _export_absolute(builder: GraphBuilder, name: str, input: Value) -> Value:
    """Export |x| as relu(x) + relu(-x)."""
    x = builder.arrange_permutation(input, name)
    negative = multiply_values(builder, f"{name}.negative", x, -1)
    parts = [
        builder.add_node("relu", f"{name}.part{i}", part, torch_function=torch.relu)
        for i, part in enumerate((x, negative))
    ]
    return builder.add_node("add", name, parts)


ARITHMETIC_ROWS: list[FunctionRow] = [
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _export_add),
    ((operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "subtract"), _export_subtract),
    ((torch.rsub,), _export_reversed_subtract),
    ((operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply"), _export_multiply),
    ((operator.truediv, operator.itruediv, torch.div, torch.divide, "div", "div_", "divide"), _export_divide),
    ((operator.neg, torch.neg, "neg", "neg_"), _export_negate),
    ((operator.pow, torch.pow, "pow"), _export_power),
    ((torch.square, "square"), _export_square),
    ((torch.addcmul, "addcmul"), _export_addcmul),
    ((operator.abs, torch.abs, "abs"), _export_absolute),
]
