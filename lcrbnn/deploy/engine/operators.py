"""OPERATORS: one row per operator, with its attributes and output shape; infer_shapes checks a whole model."""

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

from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.errors import InputError, check_known_names, lookup

Shape = tuple[int, int, int]  # h, w, c

MAX_DIMENSION = 2**20  # for values, tensors and integer attributes
MAX_VALUE_ELEMENTS = 2**28
MAX_MARGIN = 16  # maximum ratio of the resized picture's shorter side to the centre crop
MAX_ENTRIES = 65_536  # for nodes, and for tensors
MAX_SUM_TERMS = 65_535  # of a bconv: engines count the terms of a sum in 16 bits

_DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}


@dataclass(frozen=True)
class TensorAttribute:
    """An attribute that holds a tensor: allowed types, names of its dimensions, and a keyword allowed instead.

    _allowed_sizes lists the sizes that each name of a dimension stands for.
    """

    types: tuple[str, ...]
    dimensions: tuple[str, ...]
    keyword: str | None = None
    rejects_nan: bool = False  # values are compared with this tensor, so it must not contain NaN

    def check(self, value: object, key: str) -> None:
        """Raise InputError unless the value is the keyword, or a tensor of an allowed type and number of dimensions."""
        if self.keyword is not None and isinstance(value, str) and value == self.keyword:
            return
        type_and_shape = tensor_type(value)
        if (
            type_and_shape is None
            or type_and_shape[0] not in self.types
            or len(type_and_shape[1]) != len(self.dimensions)
        ):
            or_keyword = f" or {self.keyword!r}" if self.keyword else ""
            got = _format_value(value) if type_and_shape is None else f"{type_and_shape[0]} {list(type_and_shape[1])}"
            raise InputError(
                f"{key} must be {' or '.join(self.types)} [{', '.join(self.dimensions)}]{or_keyword}; got {got}"
            )

    def check_sizes(self, value: Any, key: str, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise InputError unless each dimension of the tensor has one of the allowed sizes."""
        _, shape = tensor_type(value) or ("", ())
        for size, name in zip(shape, self.dimensions, strict=True):
            if size not in sizes[name]:
                expected = ", ".join(f"{name} = {' or '.join(map(str, sizes[name]))}" for name in self.dimensions)
                raise InputError(f"{key} must have the shape [{expected}]; got {list(shape)}")
        if any(size > MAX_DIMENSION for size in shape):
            raise InputError(f"no dimension of {key} may be larger than {MAX_DIMENSION}; got {list(shape)}")

    def check_values(self, value: Any, key: str) -> None:
        """Raise InputError if thresholds contain NaN, or if padding bits are set."""
        if self.rejects_nan and np.isnan(value).any():
            raise InputError(f"{key} must not be NaN")
        if isinstance(value, PackedSigns) and has_padding_bits(value):
            raise InputError(f"the padding bits of each row of {key} must be 0")


@dataclass(frozen=True)
class IntegerAttribute:
    """An attribute that holds an integer, or a list of `count` integers."""

    low: int
    high: int = MAX_DIMENSION
    count: int | None = None

    def check(self, value: object, key: str) -> None:
        """Raise InputError unless the value is an integer, or a list of integers, within the bounds."""
        value_list: Sequence[object] = value if isinstance(value, tuple | list) else ()
        integers, count = ((value,), 1) if self.count is None else (value_list, self.count)
        if len(integers) != count or not all(_is_integer(i, self.low, self.high) for i in integers):
            description = "a whole number" if self.count is None else f"a list of {self.count} whole numbers"
            raise InputError(f"{key} must be {description} from {self.low} to {self.high}; got {_format_value(value)}")


@dataclass(frozen=True)
class Operator:
    """A row of OPERATORS: output shape (from attributes and input shapes), attributes, names of the optional ones."""

    infer_shape: Callable[[Mapping[str, Any], Sequence[Shape]], Shape]
    attributes: Mapping[str, TensorAttribute | IntegerAttribute] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    num_inputs: int = 1


def tensor_type(value: object) -> tuple[str, tuple[int, ...]] | None:
    """Return type (f32, f16 or bits) and shape of a tensor as stored in the file; None for anything else."""
    if isinstance(value, PackedSigns):
        packed, n = value
        is_valid = isinstance(packed, np.ndarray) and packed.dtype == np.uint8 and _is_integer(n, 1, 2**63)
        return (
            ("bits", (packed.shape[0], n)) if is_valid and packed.ndim == 2 and packed.shape[1] == -(-n // 8) else None
        )
    if isinstance(value, np.ndarray):
        return next(((name, value.shape) for name, dtype in _DTYPES.items() if value.dtype == dtype), None)
    return None


def has_padding_bits(bits: PackedSigns) -> bool:
    """Return whether a bit after the end of any row is set."""
    return bool(bits.n % 8 and (bits.packed[:, -1] >> (bits.n % 8)).any())


def infer_shapes(model: BnnModel) -> list[Shape]:
    """Return the shape of every value, the input first; raise InputError if the model is invalid."""
    if not isinstance(model, BnnModel):
        raise InputError(
            f"a model must be a BnnModel, as export_model and read_model return; got {type(model).__name__}"
        )
    _check_header(model)
    shapes = [_check_shape(tuple(model.shape), "the input")]
    used_values: set[int] = set()
    checked_tensors: set[tuple[int, bool]] = set()
    for index, node in enumerate(model.nodes):
        try:
            shapes.append(_check_node(node, shapes, checked_tensors))
        except InputError as error:
            raise InputError(f"node {index} ({_format_value(node.op)}, {_format_value(node.name)}): {error}") from None
        used_values.update(node.inputs)
    unused = [value for value in range(len(shapes) - 1) if value not in used_values]
    if unused:
        raise InputError(f"every value except the last must be used; value {unused[0]} is not used")
    if shapes[-1] != (1, 1, len(model.classes)):
        raise InputError(f"the last value must have the shape 1 x 1 x {len(model.classes)} (classes); got {shapes[-1]}")
    return shapes


def _check_header(model: BnnModel) -> None:
    """Check everything of a model except its nodes."""
    _check_text(model.name, "the model's name")
    _check_text(model.writer, "the writer's name")
    IntegerAttribute(1, count=3).check(model.shape, "the input's shape")
    _check_float32(model.top, "the input's top", positive=True)
    for name, numbers in (("mean", model.mean), ("std", model.std)):
        if not isinstance(numbers, tuple | list) or len(numbers) != model.shape[2]:
            got = _format_value(numbers)
            raise InputError(
                f"the input's {name} must be a list of {model.shape[2]} numbers, one per channel; got {got}"
            )
        for value in numbers:
            _check_float32(value, f"the input's {name}", positive=name == "std")
    _check_float32(model.margin, "the input's margin", positive=True)
    if not 1 <= model.margin <= MAX_MARGIN:
        raise InputError(f"the input's margin must be from 1 to {MAX_MARGIN}; got {model.margin}")
    if not isinstance(model.classes, tuple | list):
        raise InputError(f"classes must be a list of names; got {_format_value(model.classes)}")
    for name in model.classes:
        _check_text(name, "a class")
    if not isinstance(model.nodes, tuple | list) or not 1 <= len(model.nodes) <= MAX_ENTRIES:
        raise InputError(f"nodes must be a list of 1 to {MAX_ENTRIES}; got {_format_value(model.nodes)}")


def _check_node(node: Node, shapes: Sequence[Shape], checked_tensors: set[tuple[int, bool]]) -> Shape:
    """Check a node and return the shape of its value; `checked_tensors` were already checked for earlier nodes."""
    _check_text(node.name, "the name")
    operator = lookup(OPERATORS, _shorten_name(node.op), "op", "docs/format.md")
    check_known_names(map(_shorten_name, node.attributes), operator.attributes, "key of this op", "docs/format.md")
    if not isinstance(node.inputs, tuple | list) or len(node.inputs) != operator.num_inputs:
        raise InputError(f"its inputs must be a list of {operator.num_inputs}; got {_format_value(node.inputs)}")
    for value in node.inputs:
        if not _is_integer(value, 0, len(shapes) - 1):
            raise InputError(f"its inputs must be earlier values, 0 to {len(shapes) - 1}; got {_format_value(value)}")
    for key, attribute in operator.attributes.items():
        if key in node.attributes:
            attribute.check(node.attributes[key], key)
        elif key not in operator.optional:
            raise InputError(f"the key {key!r} is missing")
    inputs = [shapes[value] for value in node.inputs]
    shape = _check_shape(operator.infer_shape(node.attributes, inputs), "its value")
    sizes = _allowed_sizes(node.attributes, inputs[0], shape)
    for key, attribute in operator.attributes.items():
        if (
            isinstance(attribute, TensorAttribute)
            and key in node.attributes
            and not isinstance(node.attributes[key], str)
        ):
            value = node.attributes[key]
            attribute.check_sizes(value, key, sizes)
            if (
                id(value),
                attribute.rejects_nan,
            ) not in checked_tensors:  # check once per tensor: thousands of nodes may share it
                attribute.check_values(value, key)
                checked_tensors.add((id(value), attribute.rejects_nan))
    return shape


def _allowed_sizes(
    attributes: Mapping[str, Any], input_shape: Shape, output_shape: Shape
) -> dict[str, tuple[int, ...]]:
    """Return the allowed sizes for each name of a dimension, from the shapes of input and output."""
    kh, kw = attributes.get("kernel", (1, 1))
    depth = input_shape[2] // attributes.get("groups", 1)
    return {
        "out": (output_shape[2],),
        "in": (input_shape[2],),
        "kh": (kh,),
        "kw": (kw,),
        "in/groups": (depth,),
        "kh*kw*in/groups": (kh * kw * depth,),
        "h'": (output_shape[0],),
        "w'": (output_shape[1],),
        "1 or out": (1, output_shape[2]),
    }


# --- shapes ---------------------------------------------------------------------------------------------------------


def _window_output_size(attributes: Mapping[str, Any], input_shape: Shape) -> tuple[int, int]:
    """Return height and width of the output of a sliding window."""
    sizes = []
    for axis, side in enumerate(("rows", "columns")):
        span = attributes.get("dilation", (1, 1))[axis] * (attributes["kernel"][axis] - 1) + 1
        available = input_shape[axis] + attributes["pad"][axis] + attributes["pad"][axis + 2]
        if span > available:
            raise InputError(f"the window spans {span} {side}, but the map has {available} with its pad")
        sizes.append((available - span) // attributes["stride"][axis] + 1)
    return sizes[0], sizes[1]


def _conv_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the output shape of a conv, bconv or wconv."""
    type_and_shape = tensor_type(attributes["weight"])
    channels, groups, out = inputs[0][2], attributes["groups"], type_and_shape[1][0] if type_and_shape else 0
    if channels % groups or out % groups:
        raise InputError(f"groups must divide the channels; got {groups} for {channels} in and {out} out")
    return (*_window_output_size(attributes, inputs[0]), out)


def _bconv_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the output shape of a bconv; raise InputError if its sums have too many terms."""
    shape, terms = (
        _conv_shape(attributes, inputs),
        math.prod(attributes["kernel"]) * (inputs[0][2] // attributes["groups"]),
    )
    if terms > MAX_SUM_TERMS:
        raise InputError(f"a sum must have at most {MAX_SUM_TERMS} terms; got {terms}")
    return shape


def _pool_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape], *, allow_low_pad: bool) -> Shape:
    """Return the output shape of a pool; each window must overlap the map.

    Without `allow_low_pad`, the padding at the top and on the left must be 0.
    """
    input_shape = inputs[0]
    sizes = _window_output_size(attributes, input_shape)
    for axis in (0, 1):
        before = attributes["pad"][axis]
        if before and not allow_low_pad:
            raise InputError(f"top and left of pad must be 0; got {list(attributes['pad'])}")
        if (
            before >= attributes["kernel"][axis]
            or (sizes[axis] - 1) * attributes["stride"][axis] - before >= input_shape[axis]
        ):
            raise InputError(f"each window must overlap the map; got the pad {list(attributes['pad'])}")
    return (*sizes, input_shape[2])


def _add_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the common shape of both inputs."""
    if inputs[0] != inputs[1]:
        raise InputError(f"both inputs must have the same shape; got {inputs[0]} and {inputs[1]}")
    return inputs[0]


def _same_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the input."""
    return inputs[0]


def _subsample_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape after taking every sy-th row and sx-th column."""
    (h, w, c), (sy, sx) = inputs[0], attributes["stride"]
    return -(-h // sy), -(-w // sx), c


def _channels_shape(attributes: Mapping[str, Any], inputs: Sequence[Shape]) -> Shape:
    """Return the shape with the zero channels that are added before and after."""
    h, w, c = inputs[0]
    return h, w, attributes["before"] + c + attributes["after"]


_PER_OUTPUT_CHANNEL = TensorAttribute(("f32",), ("out",))
_PER_INPUT_CHANNEL = TensorAttribute(("f32",), ("in",))
_POOL_WINDOW = {
    "kernel": IntegerAttribute(1, count=2),
    "stride": IntegerAttribute(1, count=2),
    "pad": IntegerAttribute(0, count=4),
}
_CONV_WINDOW = {**_POOL_WINDOW, "dilation": IntegerAttribute(1, count=2), "groups": IntegerAttribute(1)}
_BINARY_WEIGHT = {"weight": TensorAttribute(("bits",), ("out", "kh*kw*in/groups"))}
_SCALES = {
    "a": _PER_OUTPUT_CHANNEL,
    "b": _PER_OUTPUT_CHANNEL,
    "spatial": TensorAttribute(("f32",), ("h'", "w'", "1 or out")),
}
_INPUT_SIGNS: dict[str, TensorAttribute | IntegerAttribute] = {
    "threshold": TensorAttribute(("f32",), ("in",), "mean", rejects_nan=True),
    "pad_sign": IntegerAttribute(-1, 1),
}

OPERATORS: dict[str, Operator] = {
    "conv": Operator(
        _conv_shape,
        {
            "weight": TensorAttribute(("f32", "f16"), ("out", "kh", "kw", "in/groups")),
            "bias": _PER_OUTPUT_CHANNEL,
            **_CONV_WINDOW,
        },
        ("bias",),
    ),
    "bconv": Operator(_bconv_shape, {**_BINARY_WEIGHT, **_INPUT_SIGNS, **_SCALES, **_CONV_WINDOW}, ("spatial",)),
    "wconv": Operator(_conv_shape, {**_BINARY_WEIGHT, **_SCALES, **_CONV_WINDOW}, ("spatial",)),
    "affine": Operator(_same_shape, {"a": _PER_INPUT_CHANNEL, "b": _PER_INPUT_CHANNEL}),
    "add": Operator(_add_shape, num_inputs=2),
    "hardtanh": Operator(_same_shape),
    "relu": Operator(_same_shape),
    "prelu": Operator(_same_shape, {"slope": _PER_INPUT_CHANNEL}),
    "shift": Operator(_same_shape, {"b": _PER_INPUT_CHANNEL}),
    "maxpool": Operator(partial(_pool_shape, allow_low_pad=True), _POOL_WINDOW),
    "avgpool": Operator(partial(_pool_shape, allow_low_pad=False), _POOL_WINDOW),
    "mean": Operator(lambda keys, inputs: (1, 1, inputs[0][2])),
    "subsample": Operator(_subsample_shape, {"stride": IntegerAttribute(1, count=2)}),
    "channels": Operator(_channels_shape, {"before": IntegerAttribute(0), "after": IntegerAttribute(0)}),
    "flatten": Operator(lambda keys, inputs: (1, 1, math.prod(inputs[0]))),
    "softmax": Operator(_same_shape),
}


# --- single checks --------------------------------------------------------------------------------------------------


def _check_shape(shape: tuple[int, ...], description: str) -> Shape:
    """Return the shape; raise InputError if it is empty or too large."""
    h, w, c = shape
    if not all(1 <= size <= MAX_DIMENSION for size in shape) or h * w * c > MAX_VALUE_ELEMENTS:
        raise InputError(
            f"{description} would have the shape {shape}; each dimension must be from 1 to {MAX_DIMENSION}, "
            f"and their product at most {MAX_VALUE_ELEMENTS}"
        )
    return h, w, c


def _is_integer(value: object, low: int, high: int = MAX_DIMENSION) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _check_float32(value: object, description: str, *, positive: bool) -> None:
    """Raise InputError unless the value is a number that float32 can represent."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError, struct.error):  # the value overflows float32 or double
            (number,) = struct.unpack("f", struct.pack("f", value))
    if not math.isfinite(number) or (positive and number <= 0):
        kind = "positive number" if positive else "number"
        raise InputError(f"{description} must be a {kind} that float32 can represent; got {_format_value(value)}")


def _check_text(value: object, description: str) -> None:
    """Raise InputError unless the value is a text that UTF-8 can encode, without NUL, which ends a C string."""
    try:
        is_valid = isinstance(value, str) and value.encode() is not None and "\0" not in value
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise InputError(f"{description} must be a text of UTF-8 without NUL; got {_format_value(value)}")


def _shorten_name(value: object) -> str:
    """Return a name from a file, cut to a length that can be compared and printed."""
    return value[:64] if isinstance(value, str) else _format_value(value)


def _format_value(value: object) -> str:
    """Return a short text of one line for a value from a file."""
    return reprlib.repr(value).replace("\n", " ")
