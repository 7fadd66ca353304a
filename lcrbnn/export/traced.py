"""A module of one's own, followed through its forward: torch.fx lists what it calls, FUNCTIONS says what each becomes.

Modules that it calls are followed by their rules. What depends on the numbers of an image cannot be listed.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lcrbnn.errors import InputError
from lcrbnn.export.draft import Draft, Value, refuse
from lcrbnn.export.leaves import LEAVES
from lcrbnn.export.signs import numbers
from lcrbnn.models.blocks import PadChannels, Subsample


class Follow(Protocol):
    """rules.follow."""

    def __call__(self, draft: Draft, name: str, module: nn.Module, *inputs: Value) -> Value:
        """Emit the steps of a module."""


class _Batch:
    """In the place of the number of images, which no step may depend on."""

    def __repr__(self) -> str:
        return "the number of images"


BATCH = _Batch()

# A function in a forward: the draft, the step's name, and the function's own arguments, maps as values.
Function = Callable[..., Any]


class _Written(fx.Proxy):
    """A stand-in that knows x += y from x + y, which fx takes for the same."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})


class _Calls(fx.Tracer):
    """Lists the calls of one forward and looks into none of the modules called."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Written(node, self)


def _writes(call: fx.Node) -> bool:
    """Whether a function or method writes over one of its arguments."""
    text = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
    if call.op not in ("call_function", "call_method") or text.endswith("__"):
        return False
    named = text in ("iadd", "isub", "imul", "itruediv") or text.endswith("_")
    return named or "out" in call.kwargs or bool(call.kwargs.get("inplace"))  # PyTorch names what has its place


def _foreign(call: fx.Node) -> bool:
    """Whether a function is neither PyTorch's nor Python's, so that it may do anything."""
    return inspect.isfunction(call.target) and str(call.target.__module__).partition(".")[0] != "torch"


def _needed(calls: fx.Graph) -> set[fx.Node]:
    """The calls that the output depends on, or that may write over what it depends on."""
    found: set[fx.Node] = set()
    for call in reversed(calls.nodes):
        acts = call.op in ("output", "placeholder", "call_module") or _writes(call) or _foreign(call)
        if acts or found & set(call.users):
            found.add(call)
    return found


def trace(draft: Draft, name: str, module: nn.Module, inputs: Sequence[Value], follow: Follow) -> Value:
    """Emit the steps of a forward, in the order of its calls."""
    drawn = torch.get_rng_state()
    try:
        calls = _Calls().trace(module)
    except Exception as error:  # whatever a forward does with a stand-in for its images
        said = " ".join(str(error).split())[:200]
        refuse(name, f"the forward of {type(module).__name__} cannot be traced ({said or type(error).__name__})")
    if not torch.equal(drawn, torch.get_rng_state()):
        refuse(name, f"the forward of {type(module).__name__} draws random numbers")
    needed = _needed(calls)
    made: dict[fx.Node, Any] = {}
    waiting = list(inputs)
    for call in calls.nodes:
        if call not in needed:
            continue
        step = f"{name}.{call.name}" if name else call.name
        given, named = fx.node.map_arg((call.args, call.kwargs), lambda one: made[one])
        if call.op == "placeholder":
            made[call] = _placeholder(name, module, call, waiting)
        elif call.op == "get_attr":
            made[call] = operator.attrgetter(str(call.target))(module)
        elif call.op == "call_module":
            path = f"{name}.{call.target}" if name else str(call.target)
            made[call] = follow(draft, path, module.get_submodule(str(call.target)), *_maps(path, given, named))
        elif call.op == "output":
            if not isinstance(given[0], Value):
                refuse(name, f"the forward of {type(module).__name__} gives {type(given[0]).__name__}, not one map")
            return given[0]
        else:
            made[call] = _called(draft, step, call.target, given, named)
            if _writes(call) and isinstance(made[call], Value):
                made[call] = draft.write(step, _written(step, given, named), made[call])
    raise AssertionError("a traced forward has an output")


def _written(name: str, given: Sequence[Any], named: dict[str, Any]) -> Value:
    """What a function that writes over its first argument writes over."""
    first = given[0] if given else named.get("input")
    if not isinstance(first, Value):
        refuse(name, f"it writes over a {type(first).__name__}, which is no map")
    return first


def _placeholder(name: str, module: nn.Module, call: fx.Node, waiting: list[Value]) -> Any:
    if waiting:
        return waiting.pop(0)
    if not call.args:
        refuse(name, f"the forward of {type(module).__name__} takes {call.target!r} too, which it is not given")
    return call.args[0]  # its default


def _maps(name: str, given: Sequence[Any], named: dict[str, Any]) -> list[Value]:
    others = [v for v in (*given, *named.values()) if not isinstance(v, Value)]
    if others or named:
        refuse(name, "it is called with more than maps in their order")
    return list(given)


def _called(draft: Draft, name: str, target: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
    """What a function or a method makes of its arguments."""
    function = FUNCTIONS.get(target)
    text = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    touched = _values((*given, *named.values()))
    if not touched and getattr(target, "__module__", "") == "_operator":
        try:
            return target(*given, **named)
        except (TypeError, ValueError, ArithmeticError, IndexError):
            refuse(name, f"{text} of {given} is not known before there are images")
    if function is None or not touched:
        known = sorted({f if isinstance(f, str) else f.__name__ for f in FUNCTIONS})
        refuse(name, f"nothing says how the function {text!r} is written; there are {', '.join(known)}")
    try:
        return function(draft, name, *given, **named)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        refuse(name, f"the function {text!r} is called in a way that nothing says how to write ({error})")


def _values(given: Sequence[Any]) -> list[Value]:
    flat = [v for one in given for v in (one if isinstance(one, tuple | list) else (one,))]
    return [v for v in flat if isinstance(v, Value)]


# --- a function a row -----------------------------------------------------------------------------------------------


def _like(kind: Callable[..., nn.Module]) -> Function:
    """A function that is a module without numbers of its own."""

    def emit(draft: Draft, name: str, input: Value, *args: Any, **named: Any) -> Value:
        module = kind(*args, **named)
        return LEAVES[type(module)](draft, name, module, input)

    return emit


def _clamp(min: float, max: float) -> nn.Module:
    return nn.Hardtanh(min, max)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> nn.Module:
    return nn.Hardtanh(min_val, max_val)


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    if training:
        raise ValueError("it is on in evaluation too")
    return nn.Identity()


def _add(draft: Draft, name: str, input: Any, other: Any, *, alpha: float = 1) -> Value:
    if alpha != 1:
        raise ValueError(f"alpha = {alpha}")
    if not isinstance(input, Value):
        input, other = other, input
    if not isinstance(other, Value):
        b, fit = _channel_numbers(name, input, other)
        return draft.emit("shift", name, input, source=lambda v: v + fit(v), b=b)
    _alike(name, [input, other])
    if input.shape != other.shape:
        refuse(name, f"it adds maps of {input.shape} and {other.shape}")
    return draft.emit("add", name, [input, other])


def _subtract(draft: Draft, name: str, input: Any, other: Any) -> Value:
    if not isinstance(other, Value):
        return _add(draft, name, input, -other)
    if isinstance(input, Value):
        raise ValueError("a map is taken away")
    b, fit = _channel_numbers(name, other, input)
    return draft.emit("affine", name, other, source=lambda v: fit(v) - v, a=-np.ones(len(b)), b=b)


def _negate(draft: Draft, name: str, input: Value) -> Value:
    return _multiply(draft, name, input, -1)


def _multiply(draft: Draft, name: str, input: Any, other: Any) -> Value:
    if not isinstance(input, Value):
        input, other = other, input
    if isinstance(other, Value):
        raise ValueError("two maps are multiplied")
    a, fit = _channel_numbers(name, input, other)
    return draft.emit("affine", name, input, source=lambda v: v * fit(v), a=a, b=np.zeros(len(a)))


def _divide(draft: Draft, name: str, input: Any, other: Any) -> Value:
    if isinstance(other, Value):
        raise ValueError("it divides by a map")
    a, fit = _channel_numbers(name, input, other)
    if not a.all():
        raise ValueError("it divides by 0")
    return draft.emit("affine", name, input, source=lambda v: v / fit(v), a=1 / a, b=np.zeros(len(a)))


def _channel_numbers(name: str, x: Value, given: Any) -> tuple[np.ndarray, Callable[[Tensor], Any]]:
    """A number, or a tensor of one number a channel, for each channel of a value; and as PyTorch has it beside maps."""
    channels = x.shape[2]
    if isinstance(given, int | float):
        return np.full(channels, float(given)), lambda v: given
    if not isinstance(given, Tensor):
        raise TypeError(f"{given!r} is no number")
    axes = (1, channels) if x.flat else (1, channels, 1, 1)
    spread = (1,) * (len(axes) - given.dim()) + tuple(given.shape)
    if len(spread) > len(axes) or any(size not in (1, most) for size, most in zip(spread, axes, strict=True)):
        refuse(name, f"a tensor of {tuple(given.shape)} is no number a channel of {channels}")
    each = given.reshape(-1).expand(channels)
    return x.arranged(numbers(each).astype(np.float64)), lambda v: each if v.dim() == 2 else each[:, None, None]


def _alike(name: str, values: Sequence[Value]) -> None:
    first, *others = values
    for one in others:
        mine, theirs = (np.arange(v.shape[2]) if v.order is None else v.order for v in (first, one))
        if one.flat != first.flat or not np.array_equal(mine, theirs):
            refuse(name, "it joins values that PyTorch holds in different ways")


def _concatenate(draft: Draft, name: str, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Channels behind channels: each map between zeros, added up."""
    if len(tensors) != len(_values(tensors)) or any(v.flat for v in tensors) or dim not in (1, -3):
        raise ValueError("only maps are joined, along their channels")
    if len({v.shape[:2] for v in tensors}) != 1:
        refuse(name, f"it joins maps of {', '.join(str(v.shape) for v in tensors)}")
    if len(tensors) == 1:
        return draft.now(tensors[0], name).copied()
    total, before, made = sum(v.shape[2] for v in tensors), 0, None
    for i, value in enumerate(tensors):
        pad = PadChannels.by(before, total - before - value.shape[2])
        wide = LEAVES[PadChannels](draft, f"{name}.part{i}", pad, value)
        made = wide if made is None else draft.emit("add", f"{name}.join{i}", [made, wide])
        before += value.shape[2]
    assert made is not None
    return made


def _contiguous(draft: Draft, name: str, input: Value) -> Value:
    """The map itself, or a copy of it, as its memory may be."""
    value = draft.now(input, name)
    return value.beside(value)


def _mean(draft: Draft, name: str, input: Value, dim: Any = None, keepdim: bool = False) -> Value:
    axes = {d % 4 for d in (dim if isinstance(dim, tuple | list) else [dim])}
    if input.flat or axes != {2, 3}:
        raise ValueError("a mean is taken over both axes of a map")
    pooled = LEAVES[nn.AdaptiveAvgPool2d](draft, name, nn.AdaptiveAvgPool2d(1), input)
    return pooled if keepdim else LEAVES[nn.Flatten](draft, name, nn.Flatten(), pooled)


def _view(draft: Draft, name: str, input: Value, *sizes: Any) -> Value:
    """x.view(x.size(0), -1) and its like: an nn.Flatten."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    h, w, c = input.shape
    if len(sizes) != 2 or sizes[0] not in (BATCH, -1) or sizes[1] not in (-1, h * w * c) or sizes == (-1, -1):
        raise ValueError("a view is of all numbers of an image in a row")
    return LEAVES[nn.Flatten](draft, name, nn.Flatten(), input)


def _size(draft: Draft, name: str, input: Value, dim: int | None = None) -> Any:
    h, w, c = input.shape
    sizes = (BATCH, c) if input.flat else (BATCH, c, h, w)
    return sizes if dim is None else sizes[dim]


def _attribute(draft: Draft, name: str, input: Value, wanted: str) -> Any:
    if wanted != "shape":
        raise ValueError(f"the attribute {wanted!r}")
    return _size(draft, name, input)


def _item(draft: Draft, name: str, input: Value, at: Any) -> Value:
    """x[:, :, ::s, ::s]: every s-th pixel."""
    whole, step = slice(None), at[-1].step if isinstance(at, tuple) and isinstance(at[-1], slice) else None
    if input.flat or not isinstance(step, int) or step < 1 or at != (whole, whole, *[slice(None, None, step)] * 2):
        raise ValueError("of a map only every s-th pixel is taken, x[:, :, ::s, ::s]")
    return LEAVES[Subsample](draft, name, Subsample(step), input)


def _pad(draft: Draft, name: str, input: Value, pad: Any, mode: str = "constant", value: float | None = None) -> Value:
    """Zero channels around those of a map."""
    if input.flat or mode != "constant" or value not in (None, 0) or len(pad) != 6 or any(pad[:4]) or min(pad) < 0:
        raise ValueError("only zero channels are put around a map")
    return LEAVES[PadChannels](draft, name, PadChannels.by(pad[4], pad[5]), input)


_ROWS: list[tuple[tuple[Any, ...], Function]] = [
    ((operator.add, operator.iadd, torch.add, "add", "add_"), _add),
    ((operator.sub, operator.isub, torch.sub, "sub", "sub_"), _subtract),
    ((operator.mul, operator.imul, torch.mul, "mul", "mul_"), _multiply),
    ((operator.truediv, operator.itruediv, torch.div, "div", "div_"), _divide),
    ((operator.neg, torch.neg, "neg", "neg_"), _negate),
    ((F.relu, torch.relu, F.relu_, "relu", "relu_"), _like(lambda inplace=False: nn.ReLU())),
    ((F.hardtanh, F.hardtanh_), _like(_hardtanh)),
    ((torch.clamp, torch.clip, "clamp", "clamp_", "clip"), _like(_clamp)),
    ((torch.flatten, "flatten"), _like(_flatten)),
    ((F.max_pool2d,), _like(_max_pool)),
    ((F.avg_pool2d,), _like(nn.AvgPool2d)),
    ((F.adaptive_avg_pool2d,), _like(nn.AdaptiveAvgPool2d)),
    ((F.dropout,), _like(_dropout)),
    (("contiguous",), _contiguous),
    ((torch.cat, torch.concat, torch.concatenate), _concatenate),
    ((torch.mean, "mean"), _mean),
    ((torch.reshape, "view", "reshape"), _view),
    (("size",), _size),
    ((getattr,), _attribute),
    ((operator.getitem,), _item),
    ((F.pad,), _pad),
]
FUNCTIONS: dict[Any, Function] = {target: function for targets, function in _ROWS for target in targets}
