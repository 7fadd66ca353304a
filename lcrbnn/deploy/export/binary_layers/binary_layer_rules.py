"""Export binary layers with weight bits, thresholds of the input signs, and scales of the integer sums."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.graph import PackedSigns
from lcrbnn.deploy.export.binary_layers.multi_level_rules import export_sum_of_products, has_several_levels
from lcrbnn.deploy.export.binary_layers.sign_rules import SIGN_RULES, to_array
from lcrbnn.deploy.export.graph.channel_rows import ChannelRows
from lcrbnn.deploy.export.graph.graph_builder import (
    GraphBuilder,
    SlidingWindow,
    TorchFunction,
    Value,
    raise_export_error,
)
from lcrbnn.deploy.export.graph.layouts import Layout, make_standard_layout
from lcrbnn.nn.layers import BinaryConv2d, BinaryLayer, BinaryLinear
from lcrbnn.nn.methods.binarizer import BinaryTensor

FACTOR_TOLERANCE = 2.0**-21  # maximum relative error if a scale is split into channel and position factors


def export_binary_conv(builder: GraphBuilder, name: str, layer: BinaryConv2d, x: Value, window: SlidingWindow) -> Value:
    """Add the node of a binary convolution."""
    size = window.output_size(x.shape, name)
    layout = make_standard_layout((*size, layer.out_channels), 4)
    return _export_binary_layer(builder, name, layer, ChannelRows(x, 1, None, None), window, size, layout)


def export_binary_linear(builder: GraphBuilder, name: str, layer: BinaryLinear, rows: ChannelRows) -> Value:
    """Add the node of a binary linear layer: a convolution of one pixel."""
    layout, size = rows.make_layout(layer.out_features), rows.value.shape[:2]
    return _export_binary_layer(builder, name, layer, rows, SlidingWindow((1, 1)), size, layout)


def _export_binary_layer(
    builder: GraphBuilder,
    name: str,
    layer: BinaryLayer,
    input_rows: ChannelRows,
    window: SlidingWindow,
    size: tuple[int, int],
    layout: Layout,
) -> Value:
    x, shape = input_rows.value, (*size, layer.weight.shape[0])
    if layer.method.has_real_weights:
        raise_export_error(
            name,
            "its weights are real (32/1, the first of two training steps); train the second step and export its result",
        )
    if layer.input_binarizer is None and layer.method.standardizes_real_inputs:
        raise_export_error(
            name,
            f"{layer.method.name} standardises real activations with mean and deviation of each image, which the "
            "format does not support",
        )
    binary_weight = layer.binarize_weight()
    if has_several_levels(layer, binary_weight):
        return export_sum_of_products(builder, name, layer, input_rows, window, layout, shape)
    if binary_weight.non_binary_reason:
        raise_export_error(name, f"{layer.method.name}: {binary_weight.non_binary_reason}")
    signs = to_array(binary_weight.signs)
    rows = input_rows.reorder(signs) if signs.ndim == 2 else signs.transpose(0, 2, 3, 1).reshape(len(signs), -1)
    a, spatial = _split_scale(binary_weight.scale, shape, name)
    b = np.zeros(len(signs))
    attributes: dict[str, Any] = {"weight": PackedSigns(pack_signs(rows), rows.shape[1])}
    binarizer = layer.input_binarizer
    if binarizer is None:
        padding_value = getattr(layer, "padding_value", 0.0)
        if any(window.pad) and padding_value != 0:
            raise_export_error(name, f"its real input is padded with {padding_value:g}, but the format pads with 0")
    else:
        scale, offset = _activation_scale_and_offset(name, layer, spatial is not None)
        attributes |= {
            "threshold": _find_threshold(name, layer, input_rows),
            "pad_sign": _find_pad_sign(name, layer, window),
        }
        b = a * offset * signs.reshape(len(signs), -1).sum(1, dtype=np.float64)
        a = a * scale
    if layer.bias is not None:
        b = b + to_array(layer.bias)
    attributes |= {"a": a, "b": b} | ({} if spatial is None else {"spatial": spatial}) | window.to_attributes()
    op = "wconv" if binarizer is None else "bconv"
    value = builder.add_node(op, name, x, shape, scale_sums(layer), layout, **attributes)
    if binarizer is not None:
        value.node.torch_sign = lambda y: binarizer(y).signs
    return value


def scale_sums(layer: BinaryLayer) -> TorchFunction:
    """Return the function that the layer applies to its integer sums, (n, out, h, w) or (n, out).

    It runs the layer's own forward with the multiplication replaced by the given sums, so scales and biases are exact.
    """

    def run(sums: Tensor) -> Tensor:
        layer_copy = copy(layer)
        layer_copy.__dict__["_apply_linear"] = lambda x, signs, border: sums
        return BinaryLayer.forward(layer_copy, _make_example_input(layer))

    return run


def _make_example_input(layer: BinaryLayer) -> Tensor:
    return (
        torch.zeros(1, layer.in_channels, 1, 1)
        if isinstance(layer, BinaryConv2d)
        else torch.zeros(1, layer.weight.shape[1])
    )


def _activation_scale_and_offset(name: str, layer: BinaryLayer, has_spatial_scale: bool) -> tuple[float, float]:
    assert layer.input_binarizer is not None
    bits = layer.input_binarizer.bits
    if bits != 1:
        raise_export_error(
            name,
            f"{layer.method.name} has activations of {bits} bits, but the format has activations of 1 bit or real ones",
        )
    example = _make_example_input(layer)  # a batch of two samples, so that a scale per sample has two elements
    binary_input: BinaryTensor = layer.input_binarizer(torch.cat([example, example]))
    for factor in (binary_input.scale, binary_input.offset):
        if factor is not None and factor.numel() != 1:
            is_per_image = factor.shape[0] == 2 == factor.numel()
            description = "one number per image" if is_per_image else f"a tensor of shape {tuple(factor.shape)}"
            raise_export_error(
                name, f"{layer.method.name} scales activations by {description}, but the format has one number for all"
            )
    if layer.input_binarizer.has_real_padding and binary_input.offset is not None:
        raise_export_error(
            name,
            f"{layer.method.name} has activation levels around a learned centre and pads with 0, but the format needs "
            "levels around 0, or padding with one of the levels",
        )
    if has_spatial_scale and binary_input.offset is not None:
        raise_export_error(
            name,
            f"{layer.method.name} has an activation offset and a scale per position, but the format allows only one",
        )
    return (
        1.0 if binary_input.scale is None else float(binary_input.scale),
        0.0 if binary_input.offset is None else float(binary_input.offset),
    )


def _find_threshold(name: str, layer: BinaryLayer, rows: ChannelRows) -> np.ndarray | str:
    assert layer.input_binarizer is not None
    rule, channels = SIGN_RULES.get(type(layer.input_binarizer)), rows.value.shape[2]
    threshold = (
        _read_custom_thresholds(name, layer, channels) if rule is None else rule(layer.input_binarizer, channels)
    )
    return threshold if isinstance(threshold, str) else rows.reorder(threshold)


def _read_custom_thresholds(name: str, layer: BinaryLayer, channels: int) -> np.ndarray:
    """Return the thresholds that a custom activation binarizer declares. If there are none, raise InputError."""
    assert layer.input_binarizer is not None
    class_name, thresholds = type(layer.input_binarizer).__name__, layer.input_binarizer.thresholds()
    if thresholds is None:
        raise_export_error(
            name,
            f"the thresholds of {class_name} are unknown: give the class a method `thresholds` that returns the input "
            "value from which the sign is +1 (docs/adding-a-method.md)",
        )
    if thresholds.dim() > 1 or thresholds.numel() not in (1, channels):
        raise_export_error(
            name,
            f"the thresholds of {class_name} must be 1 or {channels} numbers; got the shape {tuple(thresholds.shape)}",
        )
    return np.ascontiguousarray(np.broadcast_to(to_array(thresholds.float()).reshape(-1), (channels,)))


def _find_pad_sign(name: str, layer: BinaryLayer, window: SlidingWindow) -> int:
    if not any(window.pad):
        return 0
    assert layer.input_binarizer is not None
    padding_value = getattr(layer, "padding_value", 0.0)
    if layer.input_binarizer.has_real_padding and padding_value != 0:
        raise_export_error(
            name, f"a padding_value of {padding_value:g} is not one of the learned levels of {layer.method.name}"
        )
    pad_sign = layer.input_binarizer.padding_sign(padding_value)
    if pad_sign not in (-1, 0, 1):
        raise_export_error(
            name,
            f"a padding_value of {padding_value:g} is the sign {pad_sign:g} for {layer.method.name}, not -1, 0 or 1",
        )
    return int(pad_sign)


def _split_scale(scale: Tensor | None, shape: tuple[int, int, int], name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Split a weight scale into float64 factors per channel and per position.

    The second factor is None if the scale does not depend on the position. If the scale is not a product of both, the
    second factor has one number per output element.
    """
    h, w, out = shape
    if scale is None:
        return np.ones(out), None
    values = to_array(scale).astype(np.float64)
    if values.ndim < 3 or values.shape[1:] == (1, 1):
        return np.broadcast_to(values.reshape(-1), out).copy(), None
    if any(s not in (1, n) for s, n in zip(values.shape, (out, h, w), strict=True)):
        raise_export_error(
            name,
            f"its scale was learned for outputs of {values.shape[1]} x {values.shape[2]}, but this output is {h} x {w}",
        )
    values = np.broadcast_to(values, (out, h, w))
    c, i, j = np.unravel_index(np.abs(values).argmax(), values.shape)
    if values[c, i, j] == 0:
        return np.zeros(out), None
    a, spatial = values[:, i, j].copy(), values[c] / values[c, i, j]
    if np.all(np.abs(a[:, None, None] * spatial - values) <= FACTOR_TOLERANCE * np.abs(values)):
        return a, spatial[:, :, None]
    return np.ones(out), values.transpose(1, 2, 0).copy()
