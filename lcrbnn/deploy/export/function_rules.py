"""FUNCTIONS has one export rule per function or tensor method that a custom forward may call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.deploy.export.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.layer_rules import LAYER_RULES
from lcrbnn.deploy.export.sign_rules import to_array
from lcrbnn.nn.models.blocks import PadChannels, Subsample


class _BatchSize:
    """Placeholder for the number of images, which no node may depend on."""

    def __repr__(self) -> str:
        return "the number of images"


BATCH_SIZE = _BatchSize()

# A rule takes the builder, the name of the node, and the arguments of the function, with maps replaced by Values.
FunctionRule = Callable[..., Any]


def find_values(args: Sequence[Any]) -> list[Value]:
    """Return the values among the arguments, including those inside lists and tuples."""
    flattened = [v for argument in args for v in (argument if isinstance(argument, tuple | list) else (argument,))]
    return [v for v in flattened if isinstance(v, Value)]


def _export_as_module(make_module: Callable[..., nn.Module]) -> FunctionRule:
    """Return the rule of a function that is equivalent to a module without parameters."""

    def export_function(builder: GraphBuilder, name: str, input: Value, *args: Any, **kwargs: Any) -> Value:
        module = make_module(*args, **kwargs)
        return LAYER_RULES[type(module)](builder, name, module, input)

    return export_function


def _make_clamp(min: float, max: float) -> nn.Module:
    return nn.Hardtanh(min, max)


def _make_hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> nn.Module:
    return nn.Hardtanh(min_val, max_val)


def _make_flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _make_max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def _make_dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    if training:
        raise ValueError("training=True would also drop elements in evaluation")
    return nn.Identity()


def _export_add(builder: GraphBuilder, name: str, input: Any, other: Any, *, alpha: float = 1) -> Value:
    if alpha != 1:
        raise ValueError(f"alpha = {alpha}")
    if not isinstance(input, Value):
        input, other = other, input
    if not isinstance(other, Value):
        b, to_torch_shape = _per_channel_numbers(name, input, other)
        return builder.add_node("shift", name, input, torch_function=lambda v: v + to_torch_shape(v), b=b)
    _check_same_layout(name, [input, other])
    if input.shape != other.shape:
        raise_export_error(name, f"it adds maps of the shapes {input.shape} and {other.shape}")
    return builder.add_node("add", name, [input, other])


def _export_subtract(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    if not isinstance(other, Value):
        return _export_add(builder, name, input, -other)
    if isinstance(input, Value):
        raise ValueError("a map is subtracted")
    b, to_torch_shape = _per_channel_numbers(name, other, input)
    return builder.add_node(
        "affine", name, other, torch_function=lambda v: to_torch_shape(v) - v, a=-np.ones(len(b)), b=b
    )


def _export_negate(builder: GraphBuilder, name: str, input: Value) -> Value:
    return _export_multiply(builder, name, input, -1)


def _export_multiply(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    if not isinstance(input, Value):
        input, other = other, input
    if isinstance(other, Value):
        raise ValueError("two maps are multiplied")
    a, to_torch_shape = _per_channel_numbers(name, input, other)
    return builder.add_node(
        "affine", name, input, torch_function=lambda v: v * to_torch_shape(v), a=a, b=np.zeros(len(a))
    )


def _export_divide(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    if isinstance(other, Value):
        raise ValueError("it divides by a map")
    a, to_torch_shape = _per_channel_numbers(name, input, other)
    if not a.all():
        raise ValueError("it divides by 0")
    return builder.add_node(
        "affine", name, input, torch_function=lambda v: v / to_torch_shape(v), a=1 / a, b=np.zeros(len(a))
    )


def _per_channel_numbers(name: str, x: Value, number: Any) -> tuple[np.ndarray, Callable[[Tensor], Any]]:
    """Return one number per channel of x, and a function that shapes such numbers for PyTorch."""
    channels = x.shape[2]
    if isinstance(number, int | float):
        return np.full(channels, float(number)), lambda v: number
    if not isinstance(number, Tensor):
        raise TypeError(f"{number!r} is not a number")
    full_shape = (1, channels) if x.is_flat else (1, channels, 1, 1)
    padded_shape = (1,) * (len(full_shape) - number.dim()) + tuple(number.shape)
    if len(padded_shape) > len(full_shape) or any(
        size not in (1, most) for size, most in zip(padded_shape, full_shape, strict=True)
    ):
        raise_export_error(
            name, f"a tensor of the shape {tuple(number.shape)} does not have one number per channel ({channels})"
        )
    per_channel = number.reshape(-1).expand(channels)
    return x.reorder_features(
        to_array(per_channel).astype(np.float64)
    ), lambda v: per_channel if v.dim() == 2 else per_channel[:, None, None]


def _check_same_layout(name: str, values: Sequence[Value]) -> None:
    first, *rest = values
    for value in rest:
        first_order, other_order = (
            np.arange(v.shape[2]) if v.feature_order is None else v.feature_order for v in (first, value)
        )
        if value.is_flat != first.is_flat or not np.array_equal(first_order, other_order):
            raise_export_error(name, "it combines values with different layouts in PyTorch")


def _export_concatenate(builder: GraphBuilder, name: str, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Concatenate channels. Each map is padded with zero channels, then the padded maps are added."""
    if len(tensors) != len(find_values(tensors)) or any(v.is_flat for v in tensors) or dim not in (1, -3):
        raise ValueError("only maps can be concatenated, along their channels")
    if len({v.shape[:2] for v in tensors}) != 1:
        raise_export_error(name, f"it concatenates maps of the shapes {', '.join(str(v.shape) for v in tensors)}")
    if len(tensors) == 1:
        return builder.resolve(tensors[0], name).with_new_memory()
    total_channels, channels_before, result = sum(v.shape[2] for v in tensors), 0, None
    for i, value in enumerate(tensors):
        pad = PadChannels.from_counts(channels_before, total_channels - channels_before - value.shape[2])
        padded = LAYER_RULES[PadChannels](builder, f"{name}.part{i}", pad, value)
        result = padded if result is None else builder.add_node("add", f"{name}.join{i}", [result, padded])
        channels_before += value.shape[2]
    assert result is not None
    return result


def _export_contiguous(builder: GraphBuilder, name: str, input: Value) -> Value:
    """Return a value that may or may not share memory with the input, as contiguous() does."""
    value = builder.resolve(input, name)
    return value.with_memory_of(value)


def _export_mean(builder: GraphBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    axes = {d % 4 for d in (dim if isinstance(dim, tuple | list) else [dim])}
    if input.is_flat or axes != {2, 3}:
        raise ValueError("a mean must be over both spatial axes of a map")
    pooled = LAYER_RULES[nn.AdaptiveAvgPool2d](builder, name, nn.AdaptiveAvgPool2d(1), input)
    return pooled if keepdim else LAYER_RULES[nn.Flatten](builder, name, nn.Flatten(), pooled)


def _export_view(builder: GraphBuilder, name: str, input: Value, *sizes: Any) -> Value:
    """Export x.view(x.size(0), -1) and equivalent calls as nn.Flatten."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    h, w, c = input.shape
    if len(sizes) != 2 or sizes[0] not in (BATCH_SIZE, -1) or sizes[1] not in (-1, h * w * c) or sizes == (-1, -1):
        raise ValueError("a view must flatten each image to one row")
    return LAYER_RULES[nn.Flatten](builder, name, nn.Flatten(), input)


def _export_size(builder: GraphBuilder, name: str, input: Value, dim: int | None = None) -> Any:
    h, w, c = input.shape
    sizes = (BATCH_SIZE, c) if input.is_flat else (BATCH_SIZE, c, h, w)
    return sizes if dim is None else sizes[dim]


def _export_attribute(builder: GraphBuilder, name: str, input: Value, attribute: str) -> Any:
    if attribute != "shape":
        raise ValueError(f"the attribute {attribute!r}")
    return _export_size(builder, name, input)


def _export_item(builder: GraphBuilder, name: str, input: Value, index: Any) -> Value:
    """Export x[:, :, ::s, ::s], which selects every s-th pixel."""
    all_elements, step = (
        slice(None),
        index[-1].step if isinstance(index, tuple) and isinstance(index[-1], slice) else None,
    )
    if (
        input.is_flat
        or not isinstance(step, int)
        or step < 1
        or index != (all_elements, all_elements, *[slice(None, None, step)] * 2)
    ):
        raise ValueError("the only index of a map that can be exported is x[:, :, ::s, ::s]")
    return LAYER_RULES[Subsample](builder, name, Subsample(step), input)


def _export_pad(
    builder: GraphBuilder, name: str, input: Value, pad: Any, mode: str = "constant", value: float | None = None
) -> Value:
    """Export a padding with zero channels."""
    if input.is_flat or mode != "constant" or value not in (None, 0) or len(pad) != 6 or any(pad[:4]) or min(pad) < 0:
        raise ValueError("a map can only be padded with zero channels")
    return LAYER_RULES[PadChannels](builder, name, PadChannels.from_counts(pad[4], pad[5]), input)


_FUNCTION_ROWS: list[tuple[tuple[Any, ...], FunctionRule]] = [
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _export_add),
    ((operator.sub, operator.isub, torch.sub, "sub", "sub_"), _export_subtract),
    ((operator.mul, operator.imul, torch.mul, "mul", "mul_"), _export_multiply),
    ((operator.truediv, operator.itruediv, torch.div, "div", "div_"), _export_divide),
    ((operator.neg, torch.neg, "neg", "neg_"), _export_negate),
    ((F.relu, torch.relu, F.relu_, "relu", "relu_"), _export_as_module(lambda inplace=False: nn.ReLU())),
    ((F.hardtanh, F.hardtanh_), _export_as_module(_make_hardtanh)),
    ((torch.clamp, torch.clip, "clamp", "clamp_", "clip"), _export_as_module(_make_clamp)),
    ((torch.flatten, "flatten"), _export_as_module(_make_flatten)),
    ((F.max_pool2d,), _export_as_module(_make_max_pool)),
    ((F.avg_pool2d,), _export_as_module(nn.AvgPool2d)),
    ((F.adaptive_avg_pool2d,), _export_as_module(nn.AdaptiveAvgPool2d)),
    ((F.dropout,), _export_as_module(_make_dropout)),
    (("contiguous",), _export_contiguous),
    ((torch.cat, torch.concat, torch.concatenate), _export_concatenate),
    ((torch.mean, "mean"), _export_mean),
    ((torch.reshape, "view", "reshape"), _export_view),
    (("size",), _export_size),
    ((getattr,), _export_attribute),
    ((operator.getitem,), _export_item),
    ((F.pad,), _export_pad),
]
FUNCTIONS: dict[Any, FunctionRule] = {target: function for targets, function in _FUNCTION_ROWS for target in targets}
