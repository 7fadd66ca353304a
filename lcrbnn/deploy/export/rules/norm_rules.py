"""Rules for normalisations: with running statistics (batch norm) and with those of each image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.channel_rows import ChannelRows, find_channel_rows
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.rules.activation_rules import LayerRule, require_map
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow
from lcrbnn.deploy.export.rules.view_rules import select_elements

MAX_L2_EPS = 1e-8  # of F.normalize: a larger one would change the result visibly
FLOAT32_EPS = float(torch.finfo(torch.float32).eps)  # the eps of an RMS norm without eps


def _export_batch_norm(builder: GraphBuilder, name: str, norm: Any, x: Value) -> Value:
    ranks = {nn.BatchNorm1d: (2, 3), nn.InstanceNorm1d: (3,)}.get(type(norm), (4,))
    x = builder.resolve(x, name)
    if len(x.torch_shape) not in ranks:
        kind = {2: "a vector", 4: "a map"}.get(len(x.torch_shape), f"a tensor with {len(x.torch_shape)} axes")
        raise_export_error(name, f"it needs {'a map' if ranks == (4,) else 'a vector'} as input, but gets {kind}")
    _check_channels(name, norm.num_features, x)
    if norm.running_mean is None or norm.running_var is None:
        raise_export_error(name, "it has no running statistics, so its output depends on the batch")
    rows = find_channel_rows(builder, name, x, 1, keeps_order=False)
    mean, variance = (to_array(v).astype(np.float64) for v in (norm.running_mean, norm.running_var))
    a = 1 / np.sqrt(variance + norm.eps)
    b = -mean * a
    if norm.affine:
        a, b = (v * to_array(norm.weight) for v in (a, b))
        b = b + to_array(norm.bias)

    def torch_function(v: Tensor) -> Tensor:  # same result as norm, but also for inputs of other rank
        return F.batch_norm(v, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)

    return builder.add_node(
        "affine", name, rows.value, torch_function=torch_function, a=rows.reorder(a), b=rows.reorder(b)
    )


def _check_channels(name: str, channels: int, x: Value) -> None:
    if len(x.torch_shape) < 2 or x.layout.batch_axis != 0 or x.torch_shape[1] != channels:
        kind = "features" if x.is_flat else "channels"
        size = x.torch_shape[1] if len(x.torch_shape) > 1 else 0
        raise_export_error(name, f"it needs {channels} input {kind}, but gets {size}")


def _affine_of(weight: Tensor | None, bias: Tensor | None, size: int) -> dict[str, Any]:
    a = np.ones(size) if weight is None else to_array(weight).reshape(-1).astype(np.float64)
    b = np.zeros(size) if bias is None else to_array(bias).reshape(-1).astype(np.float64)
    return {"a": a, "b": b}


def export_layer_norm(
    builder: GraphBuilder,
    name: str,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Value:
    """Add a layer norm over the last axes."""
    row_view, restore = _flatten_last_axes(builder, name, input, normalized_shape)
    rows = find_channel_rows(builder, name, row_view, -1)
    attributes = _affine_of(weight, bias, prod(normalized_shape))
    y = builder.add_node("normalize", name, rows.value, groups=1, spatial=0, eps=float(eps), **attributes)
    return restore(y)


def _flatten_last_axes(builder: GraphBuilder, name: str, x: Value, sizes: Sequence[int]) -> tuple[Value, Any]:
    """Return the value with its last axes as one, and a function that restores the axes."""
    x, count = builder.resolve(x, name), len(sizes)
    if x.torch_shape[-count:] != tuple(sizes) or len(x.torch_shape) - count <= x.layout.batch_axis:
        raise_export_error(name, f"it normalises the axes {tuple(sizes)}, but gets a tensor {x.torch_shape}")
    if count == 1:
        return x, lambda y: y
    flat = select_elements(builder, name, x, lambda v: v.flatten(-count))
    return flat, lambda y: select_elements(builder, name, y, lambda v: v.unflatten(-1, tuple(sizes)))


def _export_layer_norm_module(builder: GraphBuilder, name: str, norm: nn.LayerNorm, x: Value) -> Value:
    return export_layer_norm(builder, name, x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def export_rms_norm(
    builder: GraphBuilder,
    name: str,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Value:
    """Add an RMS norm over the last axes: a layer norm of x and -x, whose mean is 0."""
    row_view, restore = _flatten_last_axes(builder, name, input, normalized_shape)
    a = _affine_of(weight, None, prod(normalized_shape))["a"]
    rows = find_channel_rows(builder, name, row_view, -1)
    return restore(_add_rms_norm(builder, name, rows, a, FLOAT32_EPS if eps is None else float(eps)))


def _add_rms_norm(builder: GraphBuilder, name: str, rows: ChannelRows, a: np.ndarray, eps: float) -> Value:
    h, w, channels = rows.value.shape
    doubled_layout, shape = rows.make_layout(2 * channels), (h, w, 2 * channels)
    indices, zero = np.arange(channels, dtype=np.int32), np.zeros(2 * channels)
    x = builder.add_node(
        "take", f"{name}.twice", rows.value, shape, layout=doubled_layout, channels=np.tile(indices, 2)
    )
    x = builder.add_node("affine", f"{name}.signs", x, a=np.repeat([1.0, -1.0], channels), b=zero)
    x = builder.add_node("normalize", f"{name}.norm", x, groups=1, spatial=0, eps=eps, a=np.tile(a, 2), b=zero)
    return builder.add_node("take", name, x, (h, w, channels), layout=rows.make_layout(channels), channels=indices)


def _export_l2_normalize(
    builder: GraphBuilder, name: str, input: Value, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Value:
    """Export x / |x| as an RMS norm; vectors that are shorter than eps are 0 in practice, and stay 0."""
    if p != 2 or eps > MAX_L2_EPS or out is not None:
        raise ValueError("only the L2 norm with a small eps can be exported")
    rows = find_channel_rows(builder, name, input, dim)
    channels = rows.value.shape[2]
    return _add_rms_norm(builder, name, rows, np.full(channels, channels**-0.5), eps**2 / channels)


def _export_rms_norm_module(builder: GraphBuilder, name: str, norm: nn.RMSNorm, x: Value) -> Value:
    return export_rms_norm(builder, name, x, norm.normalized_shape, norm.weight, norm.eps)


def _export_group_norm(
    builder: GraphBuilder,
    name: str,
    input: Value,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Value:
    x = builder.resolve(input, name)
    _check_channels(name, x.torch_shape[1], x)
    if x.torch_shape[0] != 1:
        raise_export_error(name, "its images are merged with another axis")
    rows = find_channel_rows(builder, name, x, 1)
    channels = rows.value.shape[2]
    attributes = _affine_of(weight, bias, channels)
    if channels % num_groups or len(attributes["a"]) != channels:
        raise_export_error(
            name, f"its {num_groups} groups and {len(attributes['a'])} weights do not fit {channels} channels"
        )
    return builder.add_node("normalize", name, rows.value, groups=num_groups, spatial=1, eps=float(eps), **attributes)


def _export_group_norm_module(builder: GraphBuilder, name: str, norm: nn.GroupNorm, x: Value) -> Value:
    _check_channels(name, norm.num_channels, x)
    return _export_group_norm(builder, name, x, norm.num_groups, norm.weight, norm.bias, norm.eps)


def _export_instance_norm(builder: GraphBuilder, name: str, norm: Any, x: Value) -> Value:
    if norm.track_running_stats:
        return _export_batch_norm(builder, name, norm, x)
    x = require_map(builder, name, x, norm.num_features if norm.affine else None)
    return _export_group_norm(builder, name, x, x.shape[2], norm.weight, norm.bias, norm.eps)


NORM_MODULES: dict[type[nn.Module], LayerRule] = {
    nn.BatchNorm1d: _export_batch_norm,
    nn.BatchNorm2d: _export_batch_norm,
    nn.SyncBatchNorm: _export_batch_norm,
    nn.LayerNorm: _export_layer_norm_module,
    nn.RMSNorm: _export_rms_norm_module,
    nn.GroupNorm: _export_group_norm_module,
    nn.InstanceNorm2d: _export_instance_norm,
}

NORM_ROWS: list[FunctionRow] = [
    ((F.layer_norm,), export_layer_norm),
    ((F.rms_norm,), export_rms_norm),
    ((F.group_norm,), _export_group_norm),
    ((F.normalize,), _export_l2_normalize),
]
