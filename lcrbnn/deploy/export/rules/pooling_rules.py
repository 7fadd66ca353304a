"""Rules for pools and resizing: windows of a map, adaptive pools, nearest and bilinear interpolation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, SlidingWindow, Value, raise_export_error
from lcrbnn.deploy.export.rules.activation_rules import LayerRule, make_module_function, require_map
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow, multiply_values
from lcrbnn.deploy.export.rules.padding_rules import pad_map
from lcrbnn.deploy.export.rules.view_rules import select_elements

Pool = nn.MaxPool2d | nn.AvgPool2d


def to_pair(value: int | tuple[int, ...] | list[int]) -> tuple[int, int]:
    """Return a pair of numbers for height and width."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _pool_window(pool: Pool, shape: tuple[int, ...]) -> SlidingWindow:
    """Return the window of a pool, with the padding at bottom and right that its last output needs."""
    kernel, stride, pad = to_pair(pool.kernel_size), to_pair(pool.stride), to_pair(pool.padding)
    trailing_pads = []
    for n, k, s, p in zip(shape, kernel, stride, pad, strict=False):
        count = (n + 2 * p - k + (s - 1 if pool.ceil_mode else 0)) // s + 1
        if pool.ceil_mode and (count - 1) * s >= n + p:  # PyTorch's last window starts inside the map
            count -= 1
        trailing_pads.append(max((count - 1) * s + k - n - p, 0))
    return SlidingWindow(kernel, stride, (*pad, trailing_pads[0], trailing_pads[1]))


def _add_pool(builder: GraphBuilder, op: str, name: str, window: SlidingWindow, x: Value) -> Value:
    attributes = {k: v for k, v in window.to_attributes().items() if k not in ("dilation", "groups")}
    return builder.add_node(op, name, x, (*window.output_size(x.shape, name), x.shape[2]), **attributes)


def _export_max_pool(builder: GraphBuilder, name: str, pool: nn.MaxPool2d, x: Value) -> Value:
    if to_pair(pool.dilation) != (1, 1) or pool.return_indices:
        raise_export_error(name, "it is dilated or returns indices, which the format's maxpool does not support")
    x = require_map(builder, name, x, None)
    return _add_pool(builder, "maxpool", name, _pool_window(pool, x.shape), x)


def _export_avg_pool(builder: GraphBuilder, name: str, pool: nn.AvgPool2d, x: Value) -> Value:
    """Export padding as zeros around the map; a factor corrects the divisor where it is not the size of the window."""
    x = require_map(builder, name, x, None)
    window, pad = _pool_window(pool, x.shape), to_pair(pool.padding)
    if pad == (0, 0) and pool.divisor_override is None:
        return _add_pool(builder, "avgpool", name, window, x)
    if pool.ceil_mode:
        raise_export_error(name, "it has ceil_mode together with padding or divisor_override; set ceil_mode=False")
    size = window.kernel[0] * window.kernel[1]
    padded = pad_map(builder, name, x, (pad[1], pad[1], pad[0], pad[0]), "constant", 0.0)
    padded = require_map(builder, name, padded, None)
    unpadded_window = window._replace(pad=(0, 0, 0, 0))
    if pool.divisor_override is None and pool.count_include_pad:
        return _add_pool(builder, "avgpool", name, unpadded_window, padded)
    pooled = _add_pool(builder, "avgpool", f"{name}.mean", unpadded_window, padded)
    if pool.divisor_override is not None:
        return multiply_values(builder, name, pooled, size / pool.divisor_override)
    # The share of each window that is inside the map.
    shares = F.avg_pool2d(torch.ones(1, 1, *x.shape[:2], dtype=torch.float64), window.kernel, window.stride, pad)
    return multiply_values(builder, name, pooled, 1 / shares)


def _export_adaptive_average(builder: GraphBuilder, name: str, pool: nn.AdaptiveAvgPool2d, x: Value) -> Value:
    x = require_map(builder, name, x, None)
    size = _adaptive_size(pool.output_size, x)
    if size == (1, 1):
        return builder.add_node("mean", name, x, (1, 1, x.shape[2]))
    return builder.add_node("adaptive_avgpool", name, x, (*size, x.shape[2]), size=list(size))


def _adaptive_size(output_size: Any, x: Value) -> tuple[int, int]:
    sizes = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    h, w = (size if s is None else s for s, size in zip(sizes, x.shape, strict=False))
    return h, w


def _export_adaptive_maximum(builder: GraphBuilder, name: str, pool: nn.AdaptiveMaxPool2d, x: Value) -> Value:
    x = require_map(builder, name, x, None)
    size = _adaptive_size(pool.output_size, x)
    if pool.return_indices or any(n % s for n, s in zip(x.shape, size, strict=False)):
        raise_export_error(
            name, f"its output size is {size}; it must divide the size of the map, {x.shape[:2]}, and return no indices"
        )
    kernel = (x.shape[0] // size[0], x.shape[1] // size[1])
    return _add_pool(builder, "maxpool", name, SlidingWindow(kernel, kernel), x)


def resize(
    builder: GraphBuilder,
    name: str,
    input: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    """Return a resized map, as F.interpolate does: nearest, nearest-exact or bilinear."""
    if mode not in ("nearest", "nearest-exact", "bilinear") or antialias:
        raise_export_error(
            name, f"it resizes with the mode {mode!r}{' and antialias' if antialias else ''}; use nearest or bilinear"
        )
    options = {"size": size, "scale_factor": scale_factor, "recompute_scale_factor": recompute_scale_factor}
    x = require_map(builder, name, input, None)
    h, w, c = x.shape
    if mode != "bilinear":
        # PyTorch computes the positions in float32, so the numbers of the pixels are float32 too.
        numbers = torch.arange(max(h, w), dtype=torch.float32)
        rows = F.interpolate(numbers[:h].reshape(1, 1, h, 1).expand(1, 1, h, w), **options, mode=mode)[0, 0, :, 0]
        columns = F.interpolate(numbers[:w].expand(1, 1, h, w), **options, mode=mode)[0, 0, 0]
        return select_elements(builder, name, x, lambda v: v[:, :, rows.long()][..., columns.long()])
    resized = F.interpolate(torch.zeros(1, 1, h, w), **options, mode="bilinear", align_corners=align_corners).shape[2:]
    factors = (scale_factor,) * 2 if isinstance(scale_factor, int | float) else scale_factor
    uses_factors = factors is not None and not recompute_scale_factor and not align_corners
    if uses_factors and any(factor * n != r for factor, n, r in zip(factors, (h, w), resized, strict=True)):
        reason = f"it resizes {h} x {w} by {factors}, which is not a whole number of pixels; state the size instead"
        raise_export_error(name, reason)
    attributes: dict[str, Any] = {"size": list(resized), "align_corners": int(bool(align_corners))}
    return builder.add_node("bilinear", name, x, (resized[0], resized[1], c), **attributes)


def _export_upsample(builder: GraphBuilder, name: str, module: nn.Upsample, x: Value) -> Value:
    return resize(
        builder, name, x, module.size, module.scale_factor, module.mode, module.align_corners,
        module.recompute_scale_factor,
    )  # fmt: skip


def _make_1d_rule(make_pool: Callable[[Any], nn.Module]) -> LayerRule:
    """Return the rule of a pool over a sequence (n, channels, length): the pool over a map of one row."""

    def export_pool(builder: GraphBuilder, name: str, pool: Any, x: Value) -> Value:
        check_sequence(name, x)
        row = select_elements(builder, name, x, torch.unsqueeze, (2,))
        pool_2d = make_pool(pool)
        return select_elements(
            builder, name, POOLING_MODULES[type(pool_2d)](builder, name, pool_2d, row), torch.squeeze, (2,)
        )

    return export_pool


def check_sequence(name: str, x: Value) -> None:
    """Raise InputError unless the value is (n, channels, length)."""
    if len(x.torch_shape) != 3 or x.layout.batch_axis != 0:
        raise_export_error(name, f"it needs a tensor (n, channels, length), but gets {len(x.torch_shape)} axes")


def _first(value: Any) -> int:
    return value if isinstance(value, int) else value[0]


def _widen_max_pool(p: nn.MaxPool1d) -> nn.MaxPool2d:
    return nn.MaxPool2d(
        (1, _first(p.kernel_size)), (1, _first(p.stride)), (0, _first(p.padding)), (1, _first(p.dilation)),
        p.return_indices, p.ceil_mode,
    )  # fmt: skip


def _widen_avg_pool(p: nn.AvgPool1d) -> nn.AvgPool2d:
    return nn.AvgPool2d(
        (1, _first(p.kernel_size)), (1, _first(p.stride)), (0, _first(p.padding)), p.ceil_mode, p.count_include_pad
    )


POOLING_MODULES: dict[type[nn.Module], LayerRule] = {
    nn.MaxPool2d: _export_max_pool,
    nn.AvgPool2d: _export_avg_pool,
    nn.AdaptiveAvgPool2d: _export_adaptive_average,
    nn.AdaptiveMaxPool2d: _export_adaptive_maximum,
    nn.Upsample: _export_upsample,
    nn.UpsamplingNearest2d: _export_upsample,
    nn.UpsamplingBilinear2d: _export_upsample,
    nn.MaxPool1d: _make_1d_rule(_widen_max_pool),
    nn.AvgPool1d: _make_1d_rule(_widen_avg_pool),
    nn.AdaptiveAvgPool1d: _make_1d_rule(lambda p: nn.AdaptiveAvgPool2d((1, _first(p.output_size)))),
    nn.AdaptiveMaxPool1d: _make_1d_rule(lambda p: nn.AdaptiveMaxPool2d((1, _first(p.output_size)), p.return_indices)),
}


def _make_max_pool(
    pool_class: type[nn.MaxPool1d] | type[nn.MaxPool2d],
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    """Return the module of a function call. The functions have another order of arguments than the modules."""
    return pool_class(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


POOLING_ROWS: list[FunctionRow] = [
    *(
        ((target,), make_module_function(make_module, POOLING_MODULES))
        for target, make_module in (
            (F.max_pool2d, partial(_make_max_pool, nn.MaxPool2d)),
            (torch.max_pool2d, partial(_make_max_pool, nn.MaxPool2d)),
            (F.avg_pool2d, nn.AvgPool2d),
            (F.adaptive_avg_pool2d, nn.AdaptiveAvgPool2d),
            (F.adaptive_max_pool2d, nn.AdaptiveMaxPool2d),
            (F.max_pool1d, partial(_make_max_pool, nn.MaxPool1d)),
            (F.avg_pool1d, nn.AvgPool1d),
            (F.adaptive_avg_pool1d, nn.AdaptiveAvgPool1d),
            (F.adaptive_max_pool1d, nn.AdaptiveMaxPool1d),
        )
    ),
    ((F.interpolate, F.upsample), resize),
]
