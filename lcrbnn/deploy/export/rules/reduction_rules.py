"""Rules that join or reduce tensors along axes: cat, stack, mean, sum, maximum and minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.channel_rows import check_axis
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, SlidingWindow, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import FILL, Layout, simplify_layout
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow, describe_shape, multiply_values
from lcrbnn.deploy.export.rules.constant_calls import make_constant
from lcrbnn.deploy.export.rules.padding_rules import export_pad_channels
from lcrbnn.deploy.export.rules.view_rules import select_elements
from lcrbnn.nn.models.blocks import PadChannels


def _export_concatenate(
    builder: GraphBuilder, name: str, tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None
) -> Value:
    """Export as the sum of the tensors, each padded with zeros to the length of the result."""
    values = [builder.resolve(v, name) for v in tensors if isinstance(v, Value)]
    first = values[0]
    batch_axis = first.layout.batch_axis
    joined_axis = check_axis(name, first, dim if axis is None else axis)
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, Tensor):
            if tensor.dim() != len(first.torch_shape) or tensor.shape[batch_axis] != 1:
                raise_export_error(
                    name, f"it joins a constant {tuple(tensor.shape)} with a tensor {describe_shape(first)}"
                )
            values.insert(i, make_constant(builder, f"{name}.part{i}.constant", to_array(tensor), batch_axis))
    shapes = {
        (v.torch_shape[:joined_axis], v.torch_shape[joined_axis + 1 :], v.layout.batch_axis)
        for v in values
        if len(v.torch_shape) == len(first.torch_shape)
    }
    if len(shapes) != 1 or any(len(v.torch_shape) != len(first.torch_shape) for v in values):
        raise_export_error(name, f"it joins tensors of the shapes {', '.join(map(describe_shape, values))}")
    if len(values) == 1:
        return values[0].with_new_memory()
    total = sum(v.torch_shape[joined_axis] for v in values)
    before, result = 0, None
    for i, value in enumerate(values):
        after = total - before - value.torch_shape[joined_axis]
        padded = _pad_axis(builder, f"{name}.part{i}", value, joined_axis, before, after)
        result = padded if result is None else builder.add_node("add", f"{name}.join{i}", [result, padded])
        before += value.torch_shape[joined_axis]
    assert result is not None
    return result


def _pad_axis(builder: GraphBuilder, name: str, value: Value, axis: int, before: int, after: int) -> Value:
    """Return a value padded with zeros along an axis, in the standard layout, with (before axis, axis, after axis)."""
    if value.layout.is_map and axis == 1:
        return export_pad_channels(builder, name, PadChannels.from_counts(before, after), value)
    pads = [0, 0] * (len(value.torch_shape) - 1 - axis) + [before, after]
    padded = select_elements(
        builder, name, value, lambda v: torch.nn.functional.pad(v, pads, "constant", FILL), fill=0.0
    )
    if padded.layout.is_map:
        return builder.arrange_standard(padded, name)
    shape = padded.torch_shape
    rows, size, channels = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    stored_shape = (rows, size, channels) if channels > 1 else (1, rows, size)
    layout = Layout(shape, padded.layout.batch_axis, np.arange(prod(shape), dtype=np.int32).reshape(shape))
    arranged = builder.arrange(padded, name, padded.layout.indices.reshape(stored_shape), layout)
    return Value.from_node(arranged.node, simplify_layout(arranged.shape, layout))


def _export_stack(builder: GraphBuilder, name: str, tensors: Sequence[Any], dim: int = 0) -> Value:
    parts = []
    for i, tensor in enumerate(tensors):
        is_value = isinstance(tensor, Value)
        if is_value and dim % (len(tensor.torch_shape) + 1) <= tensor.layout.batch_axis and dim != 0:
            raise_export_error(name, "it stacks along the axis of the images")
        parts.append(
            select_elements(builder, f"{name}.part{i}", tensor, torch.unsqueeze, (dim,))
            if is_value
            else tensor.unsqueeze(dim)
        )
    rank = max(len(p.torch_shape) if isinstance(p, Value) else p.dim() for p in parts)
    return _export_concatenate(builder, name, parts, dim % rank)


def _split_axes(builder: GraphBuilder, name: str, value: Value, dim: Any) -> tuple[Value, list[int]]:
    """Return the value and the axes that a reduction removes; without axes it would reduce over the images too."""
    value = builder.resolve(value, name)
    axes = dim if isinstance(dim, tuple | list) else [dim]
    if dim is None or not axes:
        raise_export_error(name, "it reduces over all axes, also that of the images; state the axes")
    return value, sorted({check_axis(name, value, axis) for axis in axes})


def _reduce(
    builder: GraphBuilder,
    name: str,
    value: Value,
    axes: list[int],
    keepdim: bool,
    add_reduction: Callable[[Value], Value],
) -> Value:
    """Return a reduction over axes: the kept axes are stored as channels, the others as pixels."""
    shape = value.torch_shape
    kept_axes = [axis for axis in range(len(shape)) if axis not in axes]
    is_global = value.layout.is_map and axes == [2, 3]
    reduced_shape = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    if is_global:
        x = builder.arrange_standard(value, name)
    else:
        x = _store_reduced_axes_as_pixels(builder, name, value, axes, kept_axes)
    y = add_reduction(x)
    layout = Layout(
        reduced_shape, value.layout.batch_axis, np.arange(y.shape[2], dtype=np.int32).reshape(reduced_shape)
    )
    reduced = Value.from_node(y.node, simplify_layout(y.shape, layout))
    if keepdim:
        return reduced
    return select_elements(builder, name, reduced, lambda v: v.squeeze(tuple(axes)))


def _store_reduced_axes_as_pixels(
    builder: GraphBuilder, name: str, value: Value, axes: list[int], kept_axes: list[int]
) -> Value:
    shape = value.torch_shape
    channels = prod(shape[axis] for axis in kept_axes)
    ordered = value.layout.indices.transpose(*axes, *kept_axes)
    target = ordered.reshape(shape[axes[0]], -1, channels)
    if value.shape[2] == channels and prod(shape) == prod(value.shape):
        pixels = ordered.reshape(-1, channels)
        # Any order of the pixels gives the same result.
        has_all_pixels = np.array_equal(np.sort(pixels[:, 0]), np.arange(len(pixels)) * channels)
        if has_all_pixels and np.array_equal(pixels, pixels[:, :1] + np.arange(channels)):
            return value
    return builder.arrange(value, name, target, Layout((1, *target.shape)))


def _add_mean(builder: GraphBuilder, name: str) -> Callable[[Value], Value]:
    return lambda x: builder.add_node("mean", name, x, (1, 1, x.shape[2]), layout=Layout((1, x.shape[2])))


def _add_maximum(builder: GraphBuilder, name: str) -> Callable[[Value], Value]:
    def add(x: Value) -> Value:
        window = SlidingWindow((x.shape[0], x.shape[1]), (x.shape[0], x.shape[1]))
        attributes = {k: v for k, v in window.to_attributes().items() if k not in ("dilation", "groups")}
        return builder.add_node("maxpool", name, x, (1, 1, x.shape[2]), layout=Layout((1, x.shape[2])), **attributes)

    return add


def export_mean(
    builder: GraphBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False, *, axis: Any = None
) -> Value:
    """Add a mean over axes."""
    value, axes = _split_axes(builder, name, input, dim if axis is None else axis)
    return _reduce(builder, name, value, axes, keepdim, _add_mean(builder, name))


def _export_sum(builder: GraphBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    value, axes = _split_axes(builder, name, input, dim)
    count = prod(value.torch_shape[axis] for axis in axes)
    mean = _reduce(builder, f"{name}.mean", value, axes, keepdim, _add_mean(builder, f"{name}.mean"))
    return multiply_values(builder, name, mean, count)


def _export_maximum(builder: GraphBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    value, axes = _split_axes(builder, name, input, dim)
    return _reduce(builder, name, value, axes, keepdim, _add_maximum(builder, name))


def _export_minimum(builder: GraphBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    """Export as the negative maximum of the negative values."""
    negative = multiply_values(builder, f"{name}.negative", input, -1)
    return multiply_values(builder, name, _export_maximum(builder, f"{name}.maximum", negative, dim, keepdim), -1)


class ExtremumWithIndices(NamedTuple):
    """Result of torch.max(x, dim); the indices cannot be exported."""

    values: Value
    indices: object


def _export_extremum(
    builder: GraphBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False
) -> ExtremumWithIndices:
    if not isinstance(dim, int):
        raise ValueError("only the maximum along one axis can be exported")
    return ExtremumWithIndices(_export_maximum(builder, name, input, dim, keepdim), None)


REDUCTION_ROWS: list[FunctionRow] = [
    ((torch.cat, torch.concat, torch.concatenate), _export_concatenate),
    ((torch.stack,), _export_stack),
    ((torch.mean, "mean"), export_mean),
    ((torch.sum, "sum"), _export_sum),
    ((torch.amax, "amax"), _export_maximum),
    ((torch.amin, "amin"), _export_minimum),
    ((torch.max, "max"), _export_extremum),
]
