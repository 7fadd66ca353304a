"""Rules for convolutions and linear layers, real and binary, and for transposed and 1-d convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from lcrbnn.deploy.export.binary_layers.binary_layer_rules import export_binary_conv, export_binary_linear
from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.channel_rows import ChannelRows, find_channel_rows
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, SlidingWindow, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import FILL
from lcrbnn.deploy.export.rules.activation_rules import LayerRule, require_map
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow
from lcrbnn.deploy.export.rules.padding_rules import pad_map
from lcrbnn.deploy.export.rules.pooling_rules import check_sequence
from lcrbnn.deploy.export.rules.view_rules import select_elements
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.models.network import Conv2d


def _require_padded_map(builder: GraphBuilder, name: str, conv: nn.Conv2d, x: Value) -> tuple[Value, SlidingWindow]:
    """Return the input of a convolution and its window; a padding mode other than zeros pads the input itself."""
    x = require_map(builder, name, x, conv.in_channels)
    left, right, top, bottom = conv._reversed_padding_repeated_twice
    kernel, stride, dilation = ((v[0], v[1]) for v in (conv.kernel_size, conv.stride, conv.dilation))
    if conv.padding_mode != "zeros" and any((left, right, top, bottom)):
        padded = pad_map(builder, name, x, (left, right, top, bottom), conv.padding_mode)
        x = require_map(builder, name, padded, conv.in_channels)
        left = right = top = bottom = 0
    return x, SlidingWindow(kernel, stride, (top, left, bottom, right), dilation, conv.groups)


def _export_conv(builder: GraphBuilder, name: str, conv: nn.Conv2d, x: Value) -> Value:
    x, window = _require_padded_map(builder, name, conv, x)
    weight = to_array(conv.weight).astype(np.float64).transpose(0, 2, 3, 1)
    return _add_conv(builder, name, x, weight, conv.bias, window)


def _add_conv(
    builder: GraphBuilder, name: str, x: Value, weight: np.ndarray, bias: Tensor | None, window: SlidingWindow
) -> Value:
    shape = (*window.output_size(x.shape, name), len(weight))
    attributes: dict[str, Any] = {"weight": weight} | (
        {} if bias is None else {"bias": to_array(bias).astype(np.float64)}
    )
    return builder.add_node("conv", name, x, shape, None, None, **attributes, **window.to_attributes())


def find_feature_rows(builder: GraphBuilder, name: str, x: Value, features: int, axis: int = -1) -> ChannelRows:
    """Return the rows that a linear layer multiplies; raise InputError if they have another length."""
    x = builder.resolve(x, name)
    size = x.torch_shape[axis]
    if size != features:
        is_map = x.layout.is_map and x.torch_shape[1] == features
        hint = ": an nn.Flatten is missing before it" if is_map else ""
        raise_export_error(name, f"it needs {features} input features, but gets {size}{hint}")
    return find_channel_rows(builder, name, x, axis, keeps_order=False)


def export_matrix_product(
    builder: GraphBuilder, name: str, x: Value, weight: Tensor, bias: Tensor | None = None, axis: int = -1
) -> Value:
    """Add a convolution of one pixel that multiplies the rows of an axis by a weight (out, in)."""
    rows = find_feature_rows(builder, name, x, weight.shape[1], axis)
    matrix = rows.reorder(to_array(weight).astype(np.float64))[:, None, None]
    attributes = {"weight": matrix} | ({} if bias is None else {"bias": to_array(bias).astype(np.float64)})
    shape = (*rows.value.shape[:2], len(matrix))
    layout = rows.make_layout(len(matrix))
    return builder.add_node(
        "conv", name, rows.value, shape, None, layout, **attributes, **SlidingWindow((1, 1)).to_attributes()
    )


def _export_linear(builder: GraphBuilder, name: str, linear: nn.Linear, x: Value) -> Value:
    return export_matrix_product(builder, name, x, linear.weight, linear.bias)


def _export_binary_conv(builder: GraphBuilder, name: str, layer: BinaryConv2d, x: Value) -> Value:
    """Export a binary convolution. A padded input has the padded signs, unless they depend on the whole map."""
    x, window = _require_padded_map(builder, name, layer, x)
    value = export_binary_conv(builder, name, layer, x, window)
    pads_input = layer.padding_mode != "zeros" and any(layer._reversed_padding_repeated_twice)
    if pads_input and isinstance(value.node.attributes.get("threshold"), str):
        raise_export_error(
            name,
            f"{layer.method.name} compares its input with the mean of the map, so the padding mode must be 'zeros'",
        )
    return value


def _export_binary_linear(builder: GraphBuilder, name: str, layer: BinaryLinear, x: Value) -> Value:
    """Export a binary linear layer; a mean over each sample needs the images on the first axis."""
    rows = find_feature_rows(builder, name, x, layer.in_features)
    value = export_binary_linear(builder, name, layer, rows)
    has_images_first = rows.value.layout.batch_axis == 0 and rows.value.torch_shape[0] == 1
    if isinstance(value.node.attributes.get("threshold"), str) and not has_images_first:
        raise_export_error(name, f"{layer.method.name} compares each sample with its mean, so the images must be first")
    return value


def _export_transposed_conv(builder: GraphBuilder, name: str, conv: nn.ConvTranspose2d, x: Value) -> Value:
    """Export as zeros between the pixels, and a convolution with the flipped weight."""
    x = require_map(builder, name, x, conv.in_channels)
    pads: list[int] = []
    for axis in (1, 0):
        border = conv.dilation[axis] * (conv.kernel_size[axis] - 1) - int(conv.padding[axis])
        pads += [border, border + conv.output_padding[axis]]
    strides = [conv.stride[0], conv.stride[1]]

    def insert_zeros(numbers: Tensor) -> Tensor:
        n, c, h, w = numbers.shape
        sizes = [(size - 1) * stride + 1 for size, stride in zip((h, w), strides, strict=True)]
        spread = numbers.new_full((n, c, *sizes), FILL)
        spread[:, :, :: strides[0], :: strides[1]] = numbers
        return F.pad(spread, pads, "constant", FILL)

    padded = require_map(builder, name, select_elements(builder, name, x, insert_zeros, fill=0.0), conv.in_channels)
    groups = conv.groups
    weight = to_array(conv.weight).astype(np.float64)  # [in, out / groups, kh, kw]
    weight = weight.reshape(groups, -1, *weight.shape[1:])[..., ::-1, ::-1]  # group, in, out, kh, kw
    weight = weight.transpose(0, 2, 3, 4, 1).reshape(conv.out_channels, *conv.kernel_size, -1)
    window = SlidingWindow(
        (conv.kernel_size[0], conv.kernel_size[1]), dilation=(conv.dilation[0], conv.dilation[1]), groups=groups
    )
    return _add_conv(builder, name, padded, weight, conv.bias, window)


def _make_conv(*arguments: Any) -> nn.Conv2d:
    """Return a convolution without initial values, because the export must not draw random numbers."""
    conv: nn.Conv2d = skip_init(nn.Conv2d, *arguments)
    return conv


def _export_conv_1d(builder: GraphBuilder, name: str, conv: nn.Conv1d, x: Value) -> Value:
    """Export as a convolution over a map of one row."""
    check_sequence(name, x)
    padding = conv.padding if isinstance(conv.padding, str) else (0, int(conv.padding[0]))
    wide_conv = _make_conv(
        conv.in_channels, conv.out_channels, (1, conv.kernel_size[0]), (1, conv.stride[0]), padding,
        (1, conv.dilation[0]), conv.groups, conv.bias is not None, conv.padding_mode,
    )  # fmt: skip
    wide_conv.weight.data.copy_(conv.weight[:, :, None])
    if conv.bias is not None and wide_conv.bias is not None:
        wide_conv.bias.data.copy_(conv.bias)
    row = select_elements(builder, name, x, torch.unsqueeze, (2,))
    return select_elements(builder, name, _export_conv(builder, name, wide_conv, row), torch.squeeze, (2,))


LINEAR_MODULES: dict[type[nn.Module], LayerRule] = {
    BinaryConv2d: _export_binary_conv,
    BinaryLinear: _export_binary_linear,
    Conv2d: _export_conv,
    nn.Conv2d: _export_conv,
    nn.Linear: _export_linear,
    nn.ConvTranspose2d: _export_transposed_conv,
    nn.Conv1d: _export_conv_1d,
}


def _export_linear_function(builder: GraphBuilder, name: str, input: Value, weight: Any, bias: Any = None) -> Value:
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
        raise TypeError("the weight or the bias is not a constant")
    return export_matrix_product(builder, name, input, weight, bias)


def _export_conv_function(
    builder: GraphBuilder,
    name: str,
    input: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
        raise TypeError("the weight or the bias is not a constant")
    out_channels, in_channels, *kernel = weight.shape
    conv = _make_conv(
        in_channels * groups, out_channels, (kernel[0], kernel[1]), stride, padding, dilation, groups, bias is not None
    )
    conv.weight.data.copy_(weight)
    if bias is not None and conv.bias is not None:
        conv.bias.data.copy_(bias)
    return _export_conv(builder, name, conv, input)


LINEAR_ROWS: list[FunctionRow] = [
    ((F.linear,), _export_linear_function),
    ((F.conv2d, torch.conv2d), _export_conv_function),
]
