"""LAYER_RULES has one export rule per layer type without submodules. A new layer type needs a function and a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.deploy.export.binary_layer_rules import export_binary_conv, export_binary_linear
from lcrbnn.deploy.export.graph_builder import (
    GraphBuilder,
    SlidingWindow,
    Value,
    channels_first_index,
    raise_export_error,
)
from lcrbnn.deploy.export.sign_rules import to_array
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.models.blocks import Maxout, PadChannels, RPReLU, Subsample
from lcrbnn.nn.models.network import Conv2d

LayerRule = Callable[[GraphBuilder, str, Any, Value], Value]


def _export_nothing(builder: GraphBuilder, name: str, module: nn.Module, x: Value) -> Value:
    return x


def _check_map(name: str, x: Value, channels: int) -> None:
    if x.is_flat:
        raise_export_error(name, "it needs a map as input, but gets a vector")
    if x.shape[2] != channels:
        raise_export_error(name, f"it needs {channels} input channels, but gets {x.shape[2]}")


def _check_vector(name: str, x: Value, features: int) -> None:
    if not x.is_flat:
        raise_export_error(name, "it needs a vector as input, but gets a map: an nn.Flatten is missing before it")
    if x.shape[2] != features:
        raise_export_error(name, f"it needs {features} input features, but gets {x.shape[2]}")


def _conv_window(name: str, conv: nn.Conv2d) -> SlidingWindow:
    left, right, top, bottom = conv._reversed_padding_repeated_twice
    if conv.padding_mode != "zeros" and any((left, right, top, bottom)):
        raise_export_error(name, f"its padding mode is {conv.padding_mode!r}, but the format pads with one number")
    kernel, stride, dilation = ((v[0], v[1]) for v in (conv.kernel_size, conv.stride, conv.dilation))
    return SlidingWindow(kernel, stride, (top, left, bottom, right), dilation, conv.groups)


def _export_conv(builder: GraphBuilder, name: str, conv: nn.Conv2d, x: Value) -> Value:
    _check_map(name, x, conv.in_channels)
    window = _conv_window(name, conv)
    shape = (*window.output_size(x.shape, name), conv.out_channels)
    weight = to_array(conv.weight).astype(np.float64).transpose(0, 2, 3, 1)
    return builder.add_node(
        "conv", name, x, shape, None, **_weight_attributes(weight, conv.bias), **window.to_attributes()
    )


def _export_linear(builder: GraphBuilder, name: str, linear: nn.Linear, x: Value) -> Value:
    _check_vector(name, x, linear.in_features)
    weight = x.reorder_features(to_array(linear.weight).astype(np.float64))[:, None, None]
    attributes = _weight_attributes(weight, linear.bias) | SlidingWindow((1, 1)).to_attributes()
    return replace(
        builder.add_node("conv", name, x, (1, 1, linear.out_features), None, **attributes), feature_order=None
    )


def _weight_attributes(weight: np.ndarray, bias: Tensor | None) -> dict[str, np.ndarray]:
    return {"weight": weight} | ({} if bias is None else {"bias": to_array(bias).astype(np.float64)})


def _export_binary_conv(builder: GraphBuilder, name: str, layer: BinaryConv2d, x: Value) -> Value:
    _check_map(name, x, layer.in_channels)
    return export_binary_conv(builder, name, layer, x, _conv_window(name, layer))


def _export_binary_linear(builder: GraphBuilder, name: str, layer: BinaryLinear, x: Value) -> Value:
    _check_vector(name, x, layer.in_features)
    return export_binary_linear(builder, name, layer, x)


def _export_batch_norm(builder: GraphBuilder, name: str, norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Value) -> Value:
    (_check_vector if isinstance(norm, nn.BatchNorm1d) else _check_map)(name, x, norm.num_features)
    if norm.running_mean is None or norm.running_var is None:
        raise_export_error(name, "it has no running statistics, so its output depends on the batch")
    mean, variance = (to_array(v).astype(np.float64) for v in (norm.running_mean, norm.running_var))
    a = 1 / np.sqrt(variance + norm.eps)
    b = -mean * a
    if norm.affine:
        a, b = (v * to_array(norm.weight) for v in (a, b))
        b = b + to_array(norm.bias)

    def torch_function(v: Tensor) -> Tensor:  # function with the same result as norm, but also for inputs of other rank
        return F.batch_norm(v, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)

    return builder.add_node(
        "affine", name, x, torch_function=torch_function, a=x.reorder_features(a), b=x.reorder_features(b)
    )


def _export_hardtanh(builder: GraphBuilder, name: str, module: nn.Hardtanh, x: Value) -> Value:
    if (module.min_val, module.max_val) != (-1, 1):
        raise_export_error(
            name, f"it clips at {module.min_val:g} and {module.max_val:g}, but the format's hardtanh clips at -1 and 1"
        )
    return builder.add_node("hardtanh", name, x, torch_function=nn.Hardtanh())


def _export_relu(builder: GraphBuilder, name: str, module: nn.ReLU, x: Value) -> Value:
    return builder.add_node("relu", name, x, torch_function=nn.ReLU())


def _export_prelu(builder: GraphBuilder, name: str, module: nn.PReLU, x: Value) -> Value:
    if module.num_parameters not in (1, x.shape[2]):
        raise_export_error(name, f"it has {module.num_parameters} slopes, but gets {x.shape[2]} channels")
    slope = np.broadcast_to(to_array(module.weight), x.shape[2])
    return builder.add_node("prelu", name, x, torch_function=module, slope=x.reorder_features(slope))


def _export_rprelu(builder: GraphBuilder, name: str, module: RPReLU, x: Value) -> Value:
    def export_shift(part_name: str, shift: Tensor, y: Value) -> Value:
        return builder.add_node(
            "shift", part_name, y, torch_function=lambda v: v + shift, b=to_array(shift).reshape(-1)
        )

    _check_map(name, x, len(module.front))
    y = _export_prelu(builder, f"{name}.prelu", module.prelu, export_shift(f"{name}.front", module.front, x))
    return export_shift(name, module.back, y)


def _export_maxout(builder: GraphBuilder, name: str, module: Maxout, x: Value) -> Value:
    """Export as above * x and a PReLU of slope below / above, in an order that keeps the sign of the PReLU's input.

    The product is first, so that it can be folded into the layer before it, unless `above` is negative in a channel.
    """
    _check_map(name, x, len(module.above))
    above, below = (to_array(slope).astype(np.float64) for slope in (module.above, module.below))
    if (above == 0).any():
        raise_export_error(name, "its slope above 0 is 0 in a channel, but a PReLU has slope 1 there")
    # PyTorch has no function for either node alone, so the whole module becomes the function of the second node.
    zero = np.zeros(len(above))
    if (above > 0).all():
        y = builder.add_node("affine", f"{name}.above", x, a=above, b=zero)
        return builder.add_node("prelu", name, y, torch_function=module, slope=below / above)
    y = builder.add_node("prelu", f"{name}.slope", x, slope=below / above)
    return builder.add_node("affine", name, y, torch_function=module, a=above, b=zero)


def _to_pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _pool_window(pool: nn.MaxPool2d | nn.AvgPool2d, x: Value) -> SlidingWindow:
    """Return the window of a pool, with the padding at bottom and right that its last output needs."""
    kernel, stride, pad = _to_pair(pool.kernel_size), _to_pair(pool.stride), _to_pair(pool.padding)
    trailing_pads = []
    for n, k, s, p in zip(x.shape, kernel, stride, pad, strict=False):
        count = (n + 2 * p - k + (s - 1 if pool.ceil_mode else 0)) // s + 1
        if pool.ceil_mode and (count - 1) * s >= n + p:  # PyTorch's last window starts inside the map
            count -= 1
        trailing_pads.append(max((count - 1) * s + k - n - p, 0))
    return SlidingWindow(kernel, stride, (*pad, trailing_pads[0], trailing_pads[1]))


def _export_pool(builder: GraphBuilder, op: str, name: str, pool: nn.MaxPool2d | nn.AvgPool2d, x: Value) -> Value:
    _check_map(name, x, x.shape[2])
    window = _pool_window(pool, x)
    attributes = {k: v for k, v in window.to_attributes().items() if k not in ("dilation", "groups")}
    return builder.add_node(op, name, x, (*window.output_size(x.shape, name), x.shape[2]), **attributes)


def _export_max_pool(builder: GraphBuilder, name: str, pool: nn.MaxPool2d, x: Value) -> Value:
    if _to_pair(pool.dilation) != (1, 1) or pool.return_indices:
        raise_export_error(name, "it is dilated or returns indices, which the format's maxpool does not support")
    return _export_pool(builder, "maxpool", name, pool, x)


def _export_avg_pool(builder: GraphBuilder, name: str, pool: nn.AvgPool2d, x: Value) -> Value:
    if _to_pair(pool.padding) != (0, 0) or pool.divisor_override is not None:
        raise_export_error(
            name,
            "it is padded or has divisor_override, but the format's avgpool is the mean over pixels inside the map",
        )
    return _export_pool(builder, "avgpool", name, pool, x)


def _export_global_mean(builder: GraphBuilder, name: str, pool: nn.AdaptiveAvgPool2d, x: Value) -> Value:
    if pool.output_size not in (1, (1, 1), [1, 1]):
        raise_export_error(
            name, f"its output size is {pool.output_size}, but the output of the format's mean is one pixel"
        )
    return builder.add_node("mean", name, x, (1, 1, x.shape[2]))


def _export_flatten(builder: GraphBuilder, name: str, module: nn.Flatten, x: Value) -> Value:
    if (module.start_dim, module.end_dim) not in ((1, -1), (1, 3)):
        raise_export_error(
            name, f"it flattens the axes {module.start_dim} to {module.end_dim}, not all axes of an image"
        )
    h, w, c = x.shape
    if x.is_flat or h == w == 1:
        return replace(x, is_flat=True)
    flattened = builder.add_node("flatten", name, x, (1, 1, c * h * w))
    flattened.node.is_flat = True
    return replace(flattened, is_flat=True, feature_order=channels_first_index(x.shape)).with_memory_of(x)


def _export_subsample(builder: GraphBuilder, name: str, module: Subsample, x: Value) -> Value:
    h, w, c = x.shape
    s = module.stride
    return builder.add_node("subsample", name, x, (-(-h // s), -(-w // s), c), stride=[s, s]).with_memory_of(x)


def _export_pad_channels(builder: GraphBuilder, name: str, module: PadChannels, x: Value) -> Value:
    h, w, c = x.shape
    shape = (h, w, module.before + c + module.after)
    return builder.add_node("channels", name, x, shape, before=module.before, after=module.after)


LAYER_RULES: dict[type[nn.Module], LayerRule] = {
    BinaryConv2d: _export_binary_conv,
    BinaryLinear: _export_binary_linear,
    Conv2d: _export_conv,
    nn.Conv2d: _export_conv,
    nn.Linear: _export_linear,
    nn.BatchNorm1d: _export_batch_norm,
    nn.BatchNorm2d: _export_batch_norm,
    nn.Hardtanh: _export_hardtanh,
    nn.ReLU: _export_relu,
    nn.PReLU: _export_prelu,
    RPReLU: _export_rprelu,
    Maxout: _export_maxout,
    nn.MaxPool2d: _export_max_pool,
    nn.AvgPool2d: _export_avg_pool,
    nn.AdaptiveAvgPool2d: _export_global_mean,
    nn.Flatten: _export_flatten,
    Subsample: _export_subsample,
    PadChannels: _export_pad_channels,
    nn.Identity: _export_nothing,
    nn.Dropout: _export_nothing,
    nn.Dropout2d: _export_nothing,
}
