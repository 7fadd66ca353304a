"""LEAVES: what each kind of layer that holds no others becomes, a row each. A new one is a function and a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.export.binary import binary_conv, binary_linear
from lcrbnn.export.draft import Draft, Value, Window, channels_first, refuse
from lcrbnn.export.signs import numbers
from lcrbnn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.models.blocks import Maxout, PadChannels, RPReLU, Subsample
from lcrbnn.models.skeleton import Conv2d

Rule = Callable[[Draft, str, Any, Value], Value]


def _identity(draft: Draft, name: str, module: nn.Module, x: Value) -> Value:
    return x


def _image(name: str, x: Value, channels: int) -> None:
    if x.flat:
        refuse(name, "it takes a map, and gets a vector")
    if x.shape[2] != channels:
        refuse(name, f"it takes {channels} channels, and gets {x.shape[2]}")


def _vector(name: str, x: Value, features: int) -> None:
    if not x.flat:
        refuse(name, "it takes a vector, and gets a map: an nn.Flatten is missing before it")
    if x.shape[2] != features:
        refuse(name, f"it takes {features} features, and gets {x.shape[2]}")


def _window(name: str, conv: nn.Conv2d) -> Window:
    left, right, top, bottom = conv._reversed_padding_repeated_twice
    if conv.padding_mode != "zeros" and any((left, right, top, bottom)):
        refuse(name, f"its padding is of the mode {conv.padding_mode!r}, and the format has one number outside the map")
    kernel, stride, dilation = ((v[0], v[1]) for v in (conv.kernel_size, conv.stride, conv.dilation))
    return Window(kernel, stride, (top, left, bottom, right), dilation, conv.groups)


def _conv(draft: Draft, name: str, conv: nn.Conv2d, x: Value) -> Value:
    _image(name, x, conv.in_channels)
    window = _window(name, conv)
    shape = (*window.size(x.shape, name), conv.out_channels)
    weight = numbers(conv.weight).astype(np.float64).transpose(0, 2, 3, 1)
    return draft.emit("conv", name, x, shape, None, **_weighted(weight, conv.bias), **window.keys())


def _linear(draft: Draft, name: str, linear: nn.Linear, x: Value) -> Value:
    _vector(name, x, linear.in_features)
    weight = x.arranged(numbers(linear.weight).astype(np.float64))[:, None, None]
    keys = _weighted(weight, linear.bias) | Window((1, 1)).keys()
    return replace(draft.emit("conv", name, x, (1, 1, linear.out_features), None, **keys), order=None)


def _weighted(weight: np.ndarray, bias: Tensor | None) -> dict[str, np.ndarray]:
    return {"weight": weight} | ({} if bias is None else {"bias": numbers(bias).astype(np.float64)})


def _binary_conv(draft: Draft, name: str, layer: BinaryConv2d, x: Value) -> Value:
    _image(name, x, layer.in_channels)
    return binary_conv(draft, name, layer, x, _window(name, layer))


def _binary_linear(draft: Draft, name: str, layer: BinaryLinear, x: Value) -> Value:
    _vector(name, x, layer.in_features)
    return binary_linear(draft, name, layer, x)


def _norm(draft: Draft, name: str, norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Value) -> Value:
    (_vector if isinstance(norm, nn.BatchNorm1d) else _image)(name, x, norm.num_features)
    if norm.running_mean is None or norm.running_var is None:
        refuse(name, "it keeps no running statistics, so that an image's value depends on its batch")
    mean, variance = (numbers(v).astype(np.float64) for v in (norm.running_mean, norm.running_var))
    a = 1 / np.sqrt(variance + norm.eps)
    b = -mean * a
    if norm.affine:
        a, b = (v * numbers(norm.weight) for v in (a, b))
        b = b + numbers(norm.bias)

    def source(v: Tensor) -> Tensor:  # norm itself, for vectors and maps alike
        return F.batch_norm(v, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)

    return draft.emit("affine", name, x, source=source, a=x.arranged(a), b=x.arranged(b))


def _hardtanh(draft: Draft, name: str, module: nn.Hardtanh, x: Value) -> Value:
    if (module.min_val, module.max_val) != (-1, 1):
        refuse(name, f"it cuts at {module.min_val:g} and {module.max_val:g}, and the format's hardtanh at -1 and 1")
    return draft.emit("hardtanh", name, x, source=nn.Hardtanh())


def _relu(draft: Draft, name: str, module: nn.ReLU, x: Value) -> Value:
    return draft.emit("relu", name, x, source=nn.ReLU())


def _prelu(draft: Draft, name: str, module: nn.PReLU, x: Value) -> Value:
    if module.num_parameters not in (1, x.shape[2]):
        refuse(name, f"it has {module.num_parameters} slopes, and gets {x.shape[2]} channels")
    slope = np.broadcast_to(numbers(module.weight), x.shape[2])
    return draft.emit("prelu", name, x, source=module, slope=x.arranged(slope))


def _rprelu(draft: Draft, name: str, module: RPReLU, x: Value) -> Value:
    def shifted(part: str, by: Tensor, y: Value) -> Value:
        return draft.emit("shift", part, y, source=lambda v: v + by, b=numbers(by).reshape(-1))

    _image(name, x, len(module.front))
    y = _prelu(draft, f"{name}.prelu", module.prelu, shifted(f"{name}.front", module.front, x))
    return shifted(name, module.back, y)


def _maxout(draft: Draft, name: str, module: Maxout, x: Value) -> Value:
    """above * x and a PReLU of slope below / above, in an order in which x stays on its side of 0.

    The product comes first, where a batch norm before it takes it in, unless above is negative in a channel.
    """
    _image(name, x, len(module.above))
    above, below = (numbers(slope).astype(np.float64) for slope in (module.above, module.below))
    if (above == 0).any():
        refuse(name, "its slope above 0 is 0 in a channel, and a PReLU's is 1 there")
    # Neither step has code of its own in PyTorch: the whole module stands behind the second.
    zero = np.zeros(len(above))
    if (above > 0).all():
        y = draft.emit("affine", f"{name}.above", x, a=above, b=zero)
        return draft.emit("prelu", name, y, source=module, slope=below / above)
    y = draft.emit("prelu", f"{name}.slope", x, slope=below / above)
    return draft.emit("affine", name, y, source=module, a=above, b=zero)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _pool_window(pool: nn.MaxPool2d | nn.AvgPool2d, x: Value) -> Window:
    """The window of a pool, with as much padding below and on the right as its last output needs."""
    kernel, stride, pad = _pair(pool.kernel_size), _pair(pool.stride), _pair(pool.padding)
    after = []
    for n, k, s, p in zip(x.shape, kernel, stride, pad, strict=False):
        count = (n + 2 * p - k + (s - 1 if pool.ceil_mode else 0)) // s + 1
        if pool.ceil_mode and (count - 1) * s >= n + p:  # PyTorch's last window starts inside the map
            count -= 1
        after.append(max((count - 1) * s + k - n - p, 0))
    return Window(kernel, stride, (*pad, after[0], after[1]))


def _pooled(draft: Draft, op: str, name: str, pool: nn.MaxPool2d | nn.AvgPool2d, x: Value) -> Value:
    _image(name, x, x.shape[2])
    window = _pool_window(pool, x)
    keys = {k: v for k, v in window.keys().items() if k not in ("dilation", "groups")}
    return draft.emit(op, name, x, (*window.size(x.shape, name), x.shape[2]), **keys)


def _max_pool(draft: Draft, name: str, pool: nn.MaxPool2d, x: Value) -> Value:
    if _pair(pool.dilation) != (1, 1) or pool.return_indices:
        refuse(name, "it is dilated or gives indices, which the format's maxpool does not")
    return _pooled(draft, "maxpool", name, pool, x)


def _avg_pool(draft: Draft, name: str, pool: nn.AvgPool2d, x: Value) -> Value:
    if _pair(pool.padding) != (0, 0) or pool.divisor_override is not None:
        refuse(name, "it is padded or has a divisor of its own, and the format's avgpool is the mean of what is there")
    return _pooled(draft, "avgpool", name, pool, x)


def _mean(draft: Draft, name: str, pool: nn.AdaptiveAvgPool2d, x: Value) -> Value:
    if pool.output_size not in (1, (1, 1), [1, 1]):
        refuse(name, f"it averages to {pool.output_size}, and the format's mean to one pixel")
    return draft.emit("mean", name, x, (1, 1, x.shape[2]))


def _flatten(draft: Draft, name: str, module: nn.Flatten, x: Value) -> Value:
    if (module.start_dim, module.end_dim) not in ((1, -1), (1, 3)):
        refuse(name, f"it joins the axes {module.start_dim} to {module.end_dim}, not all of an image")
    h, w, c = x.shape
    if x.flat or h == w == 1:
        return replace(x, flat=True)
    made = draft.emit("flatten", name, x, (1, 1, c * h * w))
    made.step.flat = True
    return replace(made, flat=True, order=channels_first(x.shape)).beside(x)


def _subsample(draft: Draft, name: str, module: Subsample, x: Value) -> Value:
    h, w, c = x.shape
    s = module.stride
    return draft.emit("subsample", name, x, (-(-h // s), -(-w // s), c), stride=[s, s]).beside(x)


def _channels(draft: Draft, name: str, module: PadChannels, x: Value) -> Value:
    h, w, c = x.shape
    made = (h, w, module.before + c + module.after)
    return draft.emit("channels", name, x, made, before=module.before, after=module.after)


LEAVES: dict[type[nn.Module], Rule] = {
    BinaryConv2d: _binary_conv,
    BinaryLinear: _binary_linear,
    Conv2d: _conv,
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm1d: _norm,
    nn.BatchNorm2d: _norm,
    nn.Hardtanh: _hardtanh,
    nn.ReLU: _relu,
    nn.PReLU: _prelu,
    RPReLU: _rprelu,
    Maxout: _maxout,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _mean,
    nn.Flatten: _flatten,
    Subsample: _subsample,
    PadChannels: _channels,
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout2d: _identity,
}
