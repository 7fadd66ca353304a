"""ChannelRows: a tensor whose elements along one axis are the channels of a pixel, in an order that weights can follow.

Linear layers, normalisations and a softmax work on the rows of one axis. They need no reordering of the pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import Layout, simplify_layout


@dataclass(frozen=True)
class ChannelRows:
    """A value whose pixels are the rows of one axis of its tensor."""

    value: Value
    axis: int
    pixels: np.ndarray | None  # number of the pixel of each row; None in the standard layout
    channel_order: np.ndarray | None  # PyTorch's index of each stored channel; None if they are equal

    def reorder(self, numbers: np.ndarray) -> np.ndarray:
        """Return per-channel numbers (last axis) reordered from PyTorch's order to the stored order."""
        return numbers if self.channel_order is None else numbers[..., self.channel_order]

    def make_layout(self, channels: int) -> Layout:
        """Return the layout of a value with the same pixels and other channels, in PyTorch's order."""
        shape = list(self.value.torch_shape)
        shape[self.axis] = channels
        if self.pixels is None:
            return Layout(tuple(shape), self.value.layout.batch_axis)
        indices = self.pixels[..., None] * channels + np.arange(channels, dtype=np.int32)
        layout = Layout(tuple(shape), self.value.layout.batch_axis, np.moveaxis(indices, -1, self.axis))
        return simplify_layout((*self.value.shape[:2], channels), layout)


def match_channel_rows(value: Value, axis: int, *, keeps_order: bool = True) -> ChannelRows | None:
    """Return the rows of an axis if the value stores them as pixels, else None.

    Without `keeps_order`, the features of a flattened map may be stored in another order than PyTorch's.
    """
    layout = value.layout
    channels = layout.shape[axis]
    is_channel_axis = axis == 1 if layout.is_map else axis == len(layout.shape) - 1
    if layout.stored_indices is None and is_channel_axis and layout.standard_shape == value.shape:
        return ChannelRows(value, axis, None, None)
    if value.shape[2] != channels or prod(layout.shape) != prod(value.shape) or not layout.is_permutation:
        return None
    rows = np.moveaxis(layout.indices, axis, -1)
    pixels, channel_numbers = np.divmod(rows, channels)
    order = channel_numbers.reshape(-1, channels)[0]
    if (pixels != pixels[..., :1]).any() or (channel_numbers != order).any():
        return None
    if np.array_equal(order, np.arange(channels)):
        return ChannelRows(value, axis, pixels[..., 0], None)
    flat_indices = value.node.flat_indices
    if keeps_order or flat_indices is None or not np.array_equal(flat_indices, rows.reshape(-1)):
        return None
    return ChannelRows(value, axis, pixels[..., 0], np.argsort(order))


def find_channel_rows(
    builder: GraphBuilder, name: str, value: Value, axis: int, *, keeps_order: bool = True
) -> ChannelRows:
    """Return the rows of an axis; reorder the value if its pixels are not these rows.

    Without `keeps_order`, the features of a flattened map may be stored in another order than PyTorch's.
    """
    value = builder.resolve(value, name)
    axis = check_axis(name, value, axis)
    layout = value.layout
    matched_rows = match_channel_rows(value, axis, keeps_order=keeps_order)
    if matched_rows is not None:
        return matched_rows
    rows = np.moveaxis(layout.indices, axis, -1)
    channels = layout.shape[axis]
    is_complete = layout.is_permutation and rows.size == prod(value.shape)
    if rows.size == channels and is_complete and not keeps_order and layout.is_vector:
        flattened = builder.add_node("flatten", f"{name}.layout", value, (1, 1, channels), layout=layout)
        return ChannelRows(flattened, axis, np.zeros((1,), np.int32), np.argsort(layout.indices.reshape(-1)))
    if axis == 1 if layout.is_map else axis == len(layout.shape) - 1:
        return ChannelRows(builder.arrange_standard(value, name), axis, None, None)
    target = rows.reshape(prod(rows.shape[:-2]), -1, channels)
    pixels = np.arange(prod(rows.shape[:-1]), dtype=np.int32).reshape(rows.shape[:-1])
    arranged_rows = ChannelRows(value, axis, pixels, None)
    return replace(arranged_rows, value=builder.arrange(value, name, target, arranged_rows.make_layout(channels)))


def check_axis(name: str, value: Value, axis: int) -> int:
    """Return the axis, 0 or larger; raise InputError if it does not exist or if it is the axis of the images."""
    rank = len(value.torch_shape)
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise_export_error(name, f"it needs the axis {axis} of a tensor with {rank} axes")
    if axis % rank == value.layout.batch_axis:
        raise_export_error(name, f"it works along the axis {axis % rank}, which has the images of a batch")
    return axis % rank
