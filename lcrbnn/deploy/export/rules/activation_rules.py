"""Rules for activation functions: modules and functions that act on each element separately, and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.channel_rows import find_channel_rows
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow, multiply_values
from lcrbnn.deploy.export.rules.view_rules import select_elements
from lcrbnn.nn.models.blocks import Maxout, RPReLU

LayerRule = Callable[[GraphBuilder, str, Any, Value], Any]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946  # as in PyTorch


def add_elementwise(
    builder: GraphBuilder,
    name: str,
    op: str,
    x: Value,
    torch_function: Callable[[Tensor], Tensor] | None = None,
    **attributes: Any,
) -> Value:
    """Add a node that acts on each element separately; its layout is that of the input."""
    return builder.add_node(op, name, builder.arrange_permutation(x, name), torch_function=torch_function, **attributes)


def add_clamp(builder: GraphBuilder, name: str, x: Value, low: Any, high: Any) -> Value:
    """Add a node that limits each element; None is no limit. Limits of -1 and 1, or of 0, have their own nodes."""
    for limit in (low, high):
        if limit is not None and not isinstance(limit, int | float):
            raise TypeError("a limit is not a number")
    low, high = (None if v in (None, unlimited) else float(v) for v, unlimited in ((low, -np.inf), (high, np.inf)))
    if not all(v is None or np.isfinite(v) for v in (low, high)):
        raise ValueError("a limit is not finite")
    if low is not None and high is not None and low > high:
        raise ValueError("the lower limit is above the upper limit")
    if (low, high) == (-1, 1):
        return add_elementwise(builder, name, "hardtanh", x, nn.Hardtanh())
    if (low, high) == (0, None):
        return add_elementwise(builder, name, "relu", x, nn.ReLU())
    limits = {key: v for key, v in (("low", low), ("high", high)) if v is not None}
    if not limits:
        return builder.resolve(x, name).with_new_memory()
    return add_elementwise(builder, name, "clamp", x, lambda v: torch.clamp(v, low, high), **limits)


def _export_hardtanh(builder: GraphBuilder, name: str, module: nn.Hardtanh, x: Value) -> Value:
    return add_clamp(builder, name, x, module.min_val, module.max_val)


def _export_relu(builder: GraphBuilder, name: str, module: nn.ReLU, x: Value) -> Value:
    return add_clamp(builder, name, x, 0, None)


def _export_prelu(builder: GraphBuilder, name: str, module: nn.PReLU, x: Value) -> Value:
    if module.num_parameters == 1:
        x = builder.arrange_permutation(x, name)
        slope = np.broadcast_to(to_array(module.weight), x.shape[2])
        return builder.add_node("prelu", name, x, torch_function=module, slope=slope)
    rows = find_channel_rows(builder, name, x, 1, keeps_order=False)
    channels = rows.value.torch_shape[1]
    if module.num_parameters != channels:
        raise_export_error(name, f"it has {module.num_parameters} slopes, but gets {channels} channels")
    slope = rows.reorder(to_array(module.weight))
    return builder.add_node("prelu", name, rows.value, torch_function=module, slope=slope)


def _export_leaky_relu(builder: GraphBuilder, name: str, module: nn.LeakyReLU, x: Value) -> Value:
    x, slope = builder.arrange_permutation(x, name), float(module.negative_slope)
    function = nn.LeakyReLU(slope)
    return builder.add_node("prelu", name, x, torch_function=function, slope=np.full(x.shape[2], slope))


def _export_rprelu(builder: GraphBuilder, name: str, module: RPReLU, x: Value) -> Value:
    def export_shift(part_name: str, shift: Tensor, y: Value) -> Value:
        per_channel = shift.reshape(-1)
        return builder.add_node(
            "shift",
            part_name,
            y,
            torch_function=lambda v: v + (per_channel if v.dim() == 2 else per_channel[:, None, None]),
            b=to_array(shift).reshape(-1),
        )

    x = require_map(builder, name, x, len(module.front))
    y = _export_prelu(builder, f"{name}.prelu", module.prelu, export_shift(f"{name}.front", module.front, x))
    return export_shift(name, module.back, y)


def _export_maxout(builder: GraphBuilder, name: str, module: Maxout, x: Value) -> Value:
    """Export as above * x and a PReLU of slope below / above, in an order that keeps the sign of the PReLU's input.

    The product is first, so that it can be folded into the layer before it, unless `above` is negative in a channel.
    """
    x = require_map(builder, name, x, len(module.above))
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


def require_map(builder: GraphBuilder, name: str, x: Value, channels: int | None) -> Value:
    """Return a batch of maps in its standard layout, (h, w, c); raise InputError for another tensor."""
    x = builder.resolve(x, name)
    if not x.layout.is_map:
        kind = "a vector" if x.is_flat else f"a tensor with {len(x.torch_shape)} axes"
        raise_export_error(name, f"it needs a map as input, but gets {kind}")
    if channels is not None and x.torch_shape[1] != channels:
        raise_export_error(name, f"it needs {channels} input channels, but gets {x.torch_shape[1]}")
    return builder.arrange_standard(x, name)


def _export_gelu(builder: GraphBuilder, name: str, module: nn.GELU, x: Value) -> Value:
    return add_elementwise(builder, name, {"none": "gelu", "tanh": "gelu_tanh"}[module.approximate], x)


def _export_elu(builder: GraphBuilder, name: str, module: nn.ELU, x: Value) -> Value:
    return add_elementwise(builder, name, "elu", x, alpha=float(module.alpha))


def _export_celu(builder: GraphBuilder, name: str, module: nn.CELU, x: Value) -> Value:
    """Export CELU as alpha * elu(x / alpha)."""
    alpha = float(module.alpha)
    if alpha == 1:
        return add_elementwise(builder, name, "elu", x, alpha=1.0)
    y = add_elementwise(
        builder, f"{name}.elu", "elu", multiply_values(builder, f"{name}.quotient", x, 1 / alpha), alpha=1.0
    )
    return multiply_values(builder, name, y, alpha)


def _export_selu(builder: GraphBuilder, name: str, module: nn.SELU, x: Value) -> Value:
    return multiply_values(
        builder, name, add_elementwise(builder, f"{name}.elu", "elu", x, alpha=SELU_ALPHA), SELU_SCALE
    )


def export_softmax(builder: GraphBuilder, name: str, x: Value, dim: int | None) -> Value:
    """Add a softmax along an axis."""
    if dim is None:
        raise_export_error(name, "it has no dim: state the axis of the softmax")
    rows = find_channel_rows(builder, name, x, dim)
    return builder.add_node("softmax", name, rows.value)


def _export_glu(builder: GraphBuilder, name: str, module: nn.GLU, x: Value) -> Value:
    """Export as the product of the first half and the sigmoid of the second half."""
    first, second = select_elements(builder, name, x, torch.chunk, (2, module.dim))
    gate = add_elementwise(builder, f"{name}.sigmoid", "sigmoid", second)
    return multiply_values(builder, name, first, gate)


def _make_rule(op: str) -> LayerRule:
    def export_activation(builder: GraphBuilder, name: str, module: nn.Module, x: Value) -> Value:
        return add_elementwise(builder, name, op, x)

    return export_activation


def _export_softmax_module(builder: GraphBuilder, name: str, module: nn.Softmax, x: Value) -> Value:
    return export_softmax(builder, name, x, module.dim)


def _export_softmax_2d(builder: GraphBuilder, name: str, module: nn.Softmax2d, x: Value) -> Value:
    return export_softmax(builder, name, x, -3)


ACTIVATION_MODULES: dict[type[nn.Module], LayerRule] = {
    nn.Hardtanh: _export_hardtanh,
    nn.ReLU: _export_relu,
    nn.PReLU: _export_prelu,
    RPReLU: _export_rprelu,
    Maxout: _export_maxout,
    nn.ReLU6: _export_hardtanh,
    nn.LeakyReLU: _export_leaky_relu,
    nn.ELU: _export_elu,
    nn.CELU: _export_celu,
    nn.SELU: _export_selu,
    nn.GELU: _export_gelu,
    nn.SiLU: _make_rule("silu"),
    nn.Sigmoid: _make_rule("sigmoid"),
    nn.Tanh: _make_rule("tanh"),
    nn.Hardsigmoid: _make_rule("hardsigmoid"),
    nn.Hardswish: _make_rule("hardswish"),
    nn.GLU: _export_glu,
    nn.Softmax: _export_softmax_module,
    nn.Softmax2d: _export_softmax_2d,
}


def make_module_function(make_module: Callable[..., nn.Module], rules: dict[type[nn.Module], LayerRule]) -> Any:
    """Return the rule of a function that is equivalent to a module without parameters."""

    def export_function(builder: GraphBuilder, name: str, input: Value, *args: Any, **kwargs: Any) -> Value:
        module = make_module(*args, **kwargs)
        return rules[type(module)](builder, name, module, input)

    return export_function


def _export_clamp(builder: GraphBuilder, name: str, input: Value, min: Any = None, max: Any = None) -> Value:
    return add_clamp(builder, name, input, min, max)


def _export_clamp_min(builder: GraphBuilder, name: str, input: Value, min: Any) -> Value:
    return _export_clamp(builder, name, input, min)


def _export_clamp_max(builder: GraphBuilder, name: str, input: Value, max: Any) -> Value:
    return _export_clamp(builder, name, input, None, max)


def _export_softmax_function(
    builder: GraphBuilder, name: str, input: Value, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Value:
    if dtype not in (None, torch.float32):
        raise ValueError(f"dtype = {dtype}")
    return export_softmax(builder, name, input, dim)


def _export_prelu_function(builder: GraphBuilder, name: str, input: Value, weight: Tensor) -> Value:
    module = nn.PReLU(weight.numel())
    module.weight.data.copy_(weight)
    return _export_prelu(builder, name, module, input)


def _make_row(targets: tuple[Any, ...], make_module: Callable[..., nn.Module]) -> FunctionRow:
    return targets, make_module_function(make_module, ACTIVATION_MODULES)


ACTIVATION_ROWS: list[FunctionRow] = [
    _make_row((F.relu, torch.relu, F.relu_, torch.relu_, "relu", "relu_"), lambda inplace=False: nn.ReLU()),
    _make_row(
        (F.hardtanh, F.hardtanh_),
        lambda min_val=-1.0, max_val=1.0, inplace=False: nn.Hardtanh(min_val, max_val),
    ),
    ((torch.clamp, torch.clip, torch.clamp_, torch.clip_, "clamp", "clamp_", "clip", "clip_"), _export_clamp),
    ((torch.clamp_min, "clamp_min"), _export_clamp_min),
    ((torch.clamp_max, "clamp_max"), _export_clamp_max),
    _make_row((F.relu6,), lambda inplace=False: nn.ReLU6()),
    _make_row((F.leaky_relu, F.leaky_relu_), lambda negative_slope=0.01, inplace=False: nn.LeakyReLU(negative_slope)),
    ((F.prelu, torch.prelu), _export_prelu_function),
    _make_row((F.elu, F.elu_), lambda alpha=1.0, inplace=False: nn.ELU(alpha)),
    _make_row((F.celu,), lambda alpha=1.0, inplace=False: nn.CELU(alpha)),
    _make_row((F.selu,), lambda inplace=False: nn.SELU()),
    _make_row((F.gelu,), lambda approximate="none": nn.GELU(approximate)),
    _make_row((F.silu,), lambda inplace=False: nn.SiLU()),
    _make_row((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_", torch.sigmoid_), nn.Sigmoid),
    _make_row((torch.tanh, F.tanh, "tanh", "tanh_", torch.tanh_), nn.Tanh),
    _make_row((F.hardsigmoid,), lambda inplace=False: nn.Hardsigmoid()),
    _make_row((F.hardswish,), lambda inplace=False: nn.Hardswish()),
    _make_row((F.glu,), lambda dim=-1: nn.GLU(dim)),
    ((F.softmax, torch.softmax, "softmax"), _export_softmax_function),
]
