"""Compute the output shape of each operator from its attributes and the shapes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lcrbnn.deploy.engine.attributes import MAX_DIMENSION, tensor_type
from lcrbnn.errors import InputError

Shape = tuple[int, int, int]  # height, width and number of channels of a feature map

MAX_VALUE_ELEMENTS = 2**28
MAX_SUM_TERMS = 2**20  # maximum number of terms in a sum of a binary convolution (bconv)
# Maximum number of terms in a sum of a binary convolution (bconv) in a file of version 1
MAX_SUM_TERMS_VERSION_1 = 65_535


def check_shape(shape: tuple[int, ...], description: str) -> Shape:
    """Return the shape. Raise InputError if the shape is empty or too large."""
    h, w, c = shape
    if not all(1 <= size <= MAX_DIMENSION for size in shape) or h * w * c > MAX_VALUE_ELEMENTS:
        raise InputError(
            f"{description} would have the shape {shape}; each dimension must be from 1 to {MAX_DIMENSION}, "
            f"and their product at most {MAX_VALUE_ELEMENTS}"
        )
    return h, w, c


def _window_output_size(attributes: Mapping[str, Any], input_shape: Shape) -> tuple[int, int]:
    """Return height and width of the output of a sliding window."""
    sizes = []
    for axis, side in enumerate(("rows", "columns")):
        span = attributes.get("dilation", (1, 1))[axis] * (attributes["kernel"][axis] - 1) + 1
        available = input_shape[axis] + attributes["pad"][axis] + attributes["pad"][axis + 2]
        if span > available:
            raise InputError(f"the window spans {span} {side}, but the map has {available} with its pad")
        sizes.append((available - span) // attributes["stride"][axis] + 1)
    return sizes[0], sizes[1]


def infer_conv_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the output shape of a conv, bconv or wconv."""
    type_and_shape = tensor_type(attributes["weight"])
    channels, groups, out = inputs[0][2], attributes["groups"], type_and_shape[1][0] if type_and_shape else 0
    if channels % groups or out % groups:
        raise InputError(f"groups must divide the channels; got {groups} for {channels} in and {out} out")
    return (*_window_output_size(attributes, inputs[0]), out)


def count_sum_terms(attributes: Mapping[str, Any], input_shape: Shape) -> int:
    """Return the number of terms of each sum of a bconv."""
    return math.prod(attributes["kernel"]) * (input_shape[2] // attributes["groups"])


def infer_bconv_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the output shape of a bconv. Raise InputError if its sums have too many terms."""
    shape, terms = infer_conv_shape(attributes, inputs), count_sum_terms(attributes, inputs[0])
    if terms > MAX_SUM_TERMS:
        raise InputError(f"a sum must have at most {MAX_SUM_TERMS} terms; got {terms}")
    return shape


def infer_pool_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape], *, allow_low_pad: bool) -> Shape:
    """Return the output shape of a pool. Raise InputError unless each window overlaps the map.

    Without `allow_low_pad`, the padding at the top and on the left must be 0.
    """
    input_shape = inputs[0]
    sizes = _window_output_size(attributes, input_shape)
    for axis in (0, 1):
        before = attributes["pad"][axis]
        if before and not allow_low_pad:
            raise InputError(f"top and left of pad must be 0; got {list(attributes['pad'])}")
        if (
            before >= attributes["kernel"][axis]
            or (sizes[axis] - 1) * attributes["stride"][axis] - before >= input_shape[axis]
        ):
            raise InputError(f"each window must overlap the map; got the pad {list(attributes['pad'])}")
    return (*sizes, input_shape[2])


def infer_broadcast_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape of a sum or product. A dimension of 1 is repeated to the size of the other input."""
    first, second = inputs
    if any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise InputError(f"dimensions of both inputs must be equal or 1; got {first} and {second}")
    h, w, c = (max(a, b) for a, b in zip(first, second, strict=True))
    return h, w, c


def infer_same_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the input."""
    return inputs[0]


def infer_subsample_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape after taking every sy-th row and sx-th column."""
    (h, w, c), (sy, sx) = inputs[0], attributes["stride"]
    return -(-h // sy), -(-w // sx), c


def infer_channels_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape with the zero channels that are added before and after."""
    h, w, c = inputs[0]
    return h, w, attributes["before"] + c + attributes["after"]


def infer_matmul_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape (h, m, n) of the products of h pairs of matrices."""
    (h, m, k), (other_h, rows, columns) = inputs
    other_k, n = (columns, rows) if attributes["transpose"] else (rows, columns)
    if h != other_h or k != other_k:
        expected = f"({h}, n, {k})" if attributes["transpose"] else f"({h}, {k}, n)"
        raise InputError(f"the second input of a matmul must have the shape {expected}; got {inputs[1]}")
    return h, m, n


def infer_constant_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the constant."""
    h, w, c = attributes["value"].shape
    return h, w, c


def infer_take_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the number of indices of each axis. An axis without indices keeps its size."""
    keys = ("rows", "columns", "channels")
    h, w, c = (len(attributes[key]) if key in attributes else size for key, size in zip(keys, inputs[0], strict=True))
    return h, w, c


def infer_strided_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the key `shape`. Raise InputError if an element of the result would be outside the input."""
    shape, lengths, strides = attributes["shape"], attributes["lengths"], attributes["strides"]
    if len(lengths) != len(strides):
        raise InputError(f"lengths and strides must have the same count; got {len(lengths)} and {len(strides)}")
    if math.prod(lengths) != math.prod(shape):
        raise InputError(f"the product of lengths must be that of shape; got {list(lengths)} and {list(shape)}")
    ends = [(length - 1) * stride for length, stride in zip(lengths, strides, strict=True)]
    first = attributes["offset"] + sum(min(end, 0) for end in ends)
    last = attributes["offset"] + sum(max(end, 0) for end in ends)
    if first < 0 or last >= math.prod(inputs[0]):
        raise InputError(
            f"offset and strides must select elements 0 to {math.prod(inputs[0]) - 1}; got {first} to {last}"
        )
    h, w, c = shape
    return h, w, c


def infer_normalize_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the input. Raise InputError unless the number of groups divides the channels."""
    if inputs[0][2] % attributes["groups"]:
        raise InputError(f"groups must divide the {inputs[0][2]} channels; got {attributes['groups']}")
    return inputs[0]


def infer_resized_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape with the height and width of the key `size`."""
    h, w = attributes["size"]
    return h, w, inputs[0][2]
