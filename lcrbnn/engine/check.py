"""OPS: every op of a graph, a row each, with its keys and the shape it makes; and the check of a whole model."""

from __future__ import annotations

import contextlib
import math
import reprlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lcrbnn.engine import Bits, Model, Node
from lcrbnn.errors import InputError, choose, refuse_unknown

Shape = tuple[int, int, int]  # h, w, c

DIMENSION = 2**20  # the largest dimension of a value or a tensor, and the largest whole number of a key
NUMBERS = 2**28  # the most numbers of a value
MARGIN = 16  # the most that a picture is larger than the middle taken of it
COUNT = 65_536  # the most nodes, and the most tensors
TAPS = 65_535  # the most signs that a sum of a bconv adds: engines count them in 16 bits

_DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}


@dataclass(frozen=True)
class Tensor:
    """A key that holds a tensor: its possible types, the names of its dimensions (_sizes), a word in its place."""

    types: tuple[str, ...]
    dims: tuple[str, ...]
    word: str | None = None
    ordered: bool = False  # numbers are compared with it, so NaN is refused

    def check(self, value: object, key: str) -> None:
        """Check that a key holds a tensor of a possible type and number of dimensions, or the word."""
        if self.word is not None and isinstance(value, str) and value == self.word:
            return
        found = tensor_type(value)
        if found is None or found[0] not in self.types or len(found[1]) != len(self.dims):
            word = f" or {self.word!r}" if self.word else ""
            got = _shown(value) if found is None else f"{found[0]} {list(found[1])}"
            raise InputError(f"{key} must be {' or '.join(self.types)} [{', '.join(self.dims)}]{word}; got {got}")

    def check_sizes(self, value: Any, key: str, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Check the shape of a tensor."""
        _, shape = tensor_type(value) or ("", ())
        for size, name in zip(shape, self.dims, strict=True):
            if size not in sizes[name]:
                want = ", ".join(f"{each} = {' or '.join(map(str, sizes[each]))}" for each in self.dims)
                raise InputError(f"{key} must have the shape [{want}]; got {list(shape)}")
        if any(size > DIMENSION for size in shape):
            raise InputError(f"no dimension of {key} may be over {DIMENSION}; got {list(shape)}")

    def check_numbers(self, value: Any, key: str) -> None:
        """Check what no reader could use: NaN for thresholds, bits behind a row's end."""
        if self.ordered and np.isnan(value).any():
            raise InputError(f"{key} must not be NaN")
        if isinstance(value, Bits) and bits_behind(value):
            raise InputError(f"the bits of {key} behind the end of a row must be 0")


@dataclass(frozen=True)
class Whole:
    """A key that holds a whole number, or a list of `count` of them."""

    low: int
    high: int = DIMENSION
    count: int | None = None

    def check(self, value: object, key: str) -> None:
        """Check a whole number or a list of them."""
        listed: Sequence[object] = value if isinstance(value, tuple | list) else ()
        found, count = ((value,), 1) if self.count is None else (listed, self.count)
        if len(found) != count or not all(_is_whole(each, self.low, self.high) for each in found):
            what = "a whole number" if self.count is None else f"a list of {self.count} whole numbers"
            raise InputError(f"{key} must be {what} from {self.low} to {self.high}; got {_shown(value)}")


@dataclass(frozen=True)
class Op:
    """A row of OPS: the shape of its value (from its keys and inputs), its keys, those that may be absent."""

    shape: Callable[[Mapping[str, Any], Sequence[Shape]], Shape]
    keys: Mapping[str, Tensor | Whole] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    inputs: int = 1


def tensor_type(value: object) -> tuple[str, tuple[int, ...]] | None:
    """Return the type (f32, f16, bits) and shape of a tensor as the file has them; None for anything else."""
    if isinstance(value, Bits):
        packed, n = value
        right = isinstance(packed, np.ndarray) and packed.dtype == np.uint8 and _is_whole(n, 1, 2**63)
        return ("bits", (packed.shape[0], n)) if right and packed.ndim == 2 and packed.shape[1] == -(-n // 8) else None
    if isinstance(value, np.ndarray):
        return next(((name, value.shape) for name, dtype in _DTYPES.items() if value.dtype == dtype), None)
    return None


def bits_behind(bits: Bits) -> bool:
    """Whether a bit is set behind the end of some row."""
    return bool(bits.n % 8 and (bits.packed[:, -1] >> (bits.n % 8)).any())


def shapes(model: Model) -> list[Shape]:
    """Check a whole model and return the shape of every value, the input first; InputError says what is wrong where."""
    if not isinstance(model, Model):
        raise InputError(f"a model is what export_model or read_model gives; got a {type(model).__name__}")
    _check_head(model)
    made = [_limited(tuple(model.shape), "the input")]
    used: set[int] = set()
    known: set[tuple[int, bool]] = set()
    for index, node in enumerate(model.nodes):
        try:
            made.append(_node_shape(node, made, known))
        except InputError as error:
            raise InputError(f"node {index} ({_shown(node.op)}, {_shown(node.name)}): {error}") from None
        used.update(node.inputs)
    unused = [value for value in range(len(made) - 1) if value not in used]
    if unused:
        raise InputError(f"every value but the last must be used; nothing uses value {unused[0]}")
    if made[-1] != (1, 1, len(model.classes)):
        raise InputError(f"the last value must be 1 x 1 x classes, here {len(model.classes)}; its shape is {made[-1]}")
    return made


def _check_head(model: Model) -> None:
    """Check all of a model but its nodes."""
    _text(model.name, "the model's name")
    _text(model.writer, "the writer's name")
    Whole(1, count=3).check(model.shape, "the input's shape")
    _real(model.top, "the input's top", positive=True)
    for name, numbers in (("mean", model.mean), ("std", model.std)):
        if not isinstance(numbers, tuple | list) or len(numbers) != model.shape[2]:
            raise InputError(f"the input's {name} is a list of {model.shape[2]}, one a channel; got {_shown(numbers)}")
        for value in numbers:
            _real(value, f"the input's {name}", positive=name == "std")
    _real(model.margin, "the input's margin", positive=True)
    if not 1 <= model.margin <= MARGIN:
        raise InputError(f"the input's margin is from 1 to {MARGIN}; got {model.margin}")
    if not isinstance(model.classes, tuple | list):
        raise InputError(f"classes are a list of names; got {_shown(model.classes)}")
    for each in model.classes:
        _text(each, "a class")
    if not isinstance(model.nodes, tuple | list) or not 1 <= len(model.nodes) <= COUNT:
        raise InputError(f"nodes are a list of 1 to {COUNT}; got {_shown(model.nodes)}")


def _node_shape(node: Node, made: Sequence[Shape], known: set[tuple[int, bool]]) -> Shape:
    """Check a node and return the shape of its value; `known` are tensors whose numbers were looked at for others."""
    _text(node.name, "the name")
    op = choose(OPS, _cut(node.op), "op")
    refuse_unknown(map(_cut, node.keys), op.keys, "key of this op")
    if not isinstance(node.inputs, tuple | list) or len(node.inputs) != op.inputs:
        raise InputError(f"its inputs are a list of {op.inputs}; got {_shown(node.inputs)}")
    for value in node.inputs:
        if not _is_whole(value, 0, len(made) - 1):
            raise InputError(f"its inputs are earlier values, 0 to {len(made) - 1}; got {_shown(value)}")
    for key, kind in op.keys.items():
        if key in node.keys:
            kind.check(node.keys[key], key)
        elif key not in op.optional:
            raise InputError(f"the key {key!r} is missing")
    inputs = [made[value] for value in node.inputs]
    shape = _limited(op.shape(node.keys, inputs), "its value")
    sizes = _sizes(node.keys, inputs[0], shape)
    for key, kind in op.keys.items():
        if isinstance(kind, Tensor) and key in node.keys and not isinstance(node.keys[key], str):
            value = node.keys[key]
            kind.check_sizes(value, key, sizes)
            if (id(value), kind.ordered) not in known:  # once a tensor: thousands of nodes may share it
                kind.check_numbers(value, key)
                known.add((id(value), kind.ordered))
    return shape


def _sizes(keys: Mapping[str, Any], x: Shape, y: Shape) -> dict[str, tuple[int, ...]]:
    """Return the sizes that each name of a dimension may stand for, for an input x and a value y."""
    kh, kw = keys.get("kernel", (1, 1))
    depth = x[2] // keys.get("groups", 1)
    return {
        "out": (y[2],),
        "in": (x[2],),
        "kh": (kh,),
        "kw": (kw,),
        "in/groups": (depth,),
        "kh*kw*in/groups": (kh * kw * depth,),
        "h'": (y[0],),
        "w'": (y[1],),
        "1 or out": (1, y[2]),
    }


# --- shapes ---------------------------------------------------------------------------------------------------------


def _slide(keys: Mapping[str, Any], x: Shape) -> tuple[int, int]:
    """Return how many pixels a window makes, down and across."""
    made = []
    for axis, side in enumerate(("rows", "columns")):
        span = keys.get("dilation", (1, 1))[axis] * (keys["kernel"][axis] - 1) + 1
        room = x[axis] + keys["pad"][axis] + keys["pad"][axis + 2]
        if span > room:
            raise InputError(f"the window spans {span} {side}; with its pad the map has {room}")
        made.append((room - span) // keys["stride"][axis] + 1)
    return made[0], made[1]


def _conv(keys: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """The shape of a convolution of any kind."""
    found = tensor_type(keys["weight"])
    channels, groups, out = inputs[0][2], keys["groups"], found[1][0] if found else 0
    if channels % groups or out % groups:
        raise InputError(f"groups must divide the channels; got {groups} for {channels} in and {out} out")
    return (*_slide(keys, inputs[0]), out)


def _bconv(keys: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """The same, of signs, whose sums must not be too long."""
    made, terms = _conv(keys, inputs), math.prod(keys["kernel"]) * (inputs[0][2] // keys["groups"])
    if terms > TAPS:
        raise InputError(f"a sum has at most {TAPS} terms; got {terms}")
    return made


def _pool(keys: Mapping[str, Any], inputs: Sequence[Shape], *, low_pad: bool) -> Shape:
    """The shape of a pool: each window must see the map, and without `low_pad` it starts at the map's corner."""
    x = inputs[0]
    made = _slide(keys, x)
    for axis in (0, 1):
        before = keys["pad"][axis]
        if before and not low_pad:
            raise InputError(f"top and left of pad must be 0; got {list(keys['pad'])}")
        if before >= keys["kernel"][axis] or (made[axis] - 1) * keys["stride"][axis] - before >= x[axis]:
            raise InputError(f"a window lies outside the map; pad is {list(keys['pad'])}")
    return (*made, x[2])


def _add(keys: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """The one shape of both inputs."""
    if inputs[0] != inputs[1]:
        raise InputError(f"both inputs must have one shape; got {inputs[0]} and {inputs[1]}")
    return inputs[0]


def _same(keys: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """The shape of the input."""
    return inputs[0]


def _subsample(keys: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Every so many rows and columns, from the first."""
    (h, w, c), (sy, sx) = inputs[0], keys["stride"]
    return -(-h // sy), -(-w // sx), c


def _channels(keys: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """More channels."""
    h, w, c = inputs[0]
    return h, w, keys["before"] + c + keys["after"]


_OUT = Tensor(("f32",), ("out",))
_IN = Tensor(("f32",), ("in",))
_POOL = {"kernel": Whole(1, count=2), "stride": Whole(1, count=2), "pad": Whole(0, count=4)}
_WINDOW = {**_POOL, "dilation": Whole(1, count=2), "groups": Whole(1)}
_SIGNED = {"weight": Tensor(("bits",), ("out", "kh*kw*in/groups"))}
_SCALES = {"a": _OUT, "b": _OUT, "spatial": Tensor(("f32",), ("h'", "w'", "1 or out"))}
_SIGNS: dict[str, Tensor | Whole] = {
    "threshold": Tensor(("f32",), ("in",), "mean", ordered=True),
    "pad_sign": Whole(-1, 1),
}

OPS: dict[str, Op] = {
    "conv": Op(
        _conv, {"weight": Tensor(("f32", "f16"), ("out", "kh", "kw", "in/groups")), "bias": _OUT, **_WINDOW}, ("bias",)
    ),
    "bconv": Op(_bconv, {**_SIGNED, **_SIGNS, **_SCALES, **_WINDOW}, ("spatial",)),
    "wconv": Op(_conv, {**_SIGNED, **_SCALES, **_WINDOW}, ("spatial",)),
    "affine": Op(_same, {"a": _IN, "b": _IN}),
    "add": Op(_add, inputs=2),
    "hardtanh": Op(_same),
    "relu": Op(_same),
    "prelu": Op(_same, {"slope": _IN}),
    "shift": Op(_same, {"b": _IN}),
    "maxpool": Op(partial(_pool, low_pad=True), _POOL),
    "avgpool": Op(partial(_pool, low_pad=False), _POOL),
    "mean": Op(lambda keys, inputs: (1, 1, inputs[0][2])),
    "subsample": Op(_subsample, {"stride": Whole(1, count=2)}),
    "channels": Op(_channels, {"before": Whole(0), "after": Whole(0)}),
    "flatten": Op(lambda keys, inputs: (1, 1, math.prod(inputs[0]))),
    "softmax": Op(_same),
}


# --- single facts ---------------------------------------------------------------------------------------------------


def _limited(shape: tuple[int, ...], what: str) -> Shape:
    """Refuse a shape that is empty or too large."""
    h, w, c = shape
    if not all(1 <= size <= DIMENSION for size in shape) or h * w * c > NUMBERS:
        raise InputError(
            f"{what} would have the shape {shape}; a dimension is 1 to {DIMENSION}, and {NUMBERS} numbers are the most"
        )
    return h, w, c


def _is_whole(value: object, low: int, high: int = DIMENSION) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _real(value: object, what: str, *, positive: bool) -> None:
    """Check a number that float32 can hold."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError, struct.error):  # rounded to float32 it is none, or no double holds it
            (number,) = struct.unpack("f", struct.pack("f", value))
    if not math.isfinite(number) or (positive and number <= 0):
        raise InputError(f"{what} must be a {'positive ' * positive}number that float32 can hold; got {_shown(value)}")


def _text(value: object, what: str) -> None:
    """Check a text that UTF-8 can hold, without a NUL, which ends a text elsewhere."""
    try:
        right = isinstance(value, str) and value.encode() is not None and "\0" not in value
    except UnicodeEncodeError:
        right = False
    if not right:
        raise InputError(f"{what} must be a text of UTF-8 without NUL; got {_shown(value)}")


def _cut(value: object) -> str:
    """A name from outside, short enough to be compared and shown."""
    return value[:64] if isinstance(value, str) else _shown(value)


def _shown(value: object) -> str:
    """A value from outside in a few characters and one line."""
    return reprlib.repr(value).replace("\n", " ")
