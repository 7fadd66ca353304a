"""OPERATORS has one row per operator, with its attributes and output shape. infer_shapes checks a whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lcrbnn.deploy.engine.attributes import (
    Attribute,
    IntegerAttribute,
    NumberAttribute,
    TensorAttribute,
    check_float32,
    check_text,
    format_value,
    is_integer,
    shorten_name,
)
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node
from lcrbnn.deploy.engine.output_shapes import (
    MAX_SUM_TERMS_VERSION_1,
    MAX_VALUE_ELEMENTS,
    Shape,
    check_shape,
    count_sum_terms,
    infer_bconv_shape,
    infer_broadcast_shape,
    infer_channels_shape,
    infer_constant_shape,
    infer_conv_shape,
    infer_matmul_shape,
    infer_normalize_shape,
    infer_pool_shape,
    infer_resized_shape,
    infer_same_shape,
    infer_strided_shape,
    infer_subsample_shape,
    infer_take_shape,
)
from lcrbnn.errors import InputError, check_known_names, lookup

MAX_MARGIN = 16  # maximum ratio of the resized picture's shorter side to the centre crop
MAX_ENTRIES = 65_536  # maximum number of nodes in a model, and also of tensors
MAX_OUTPUTS = 64
MAX_FACTORS = 8  # maximum number of digits in the output index of the operator strided


@dataclass(frozen=True)
class Operator:
    """A row of OPERATORS: a function for the output shape, the attributes, and the names of optional attributes.

    `version` is the first version of the file format that has the operator.
    """

    infer_shape: Callable[[Mapping[str, Any], Sequence[Shape]], Shape]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    num_inputs: int = 1
    version: int = 1


def infer_shapes(model: BnnModel) -> list[Shape]:
    """Return the shape of every value, with the input as the first. Raise InputError if the model is invalid."""
    if not isinstance(model, BnnModel):
        raise InputError(
            f"a model must be a BnnModel, as export_model and read_model return; got {type(model).__name__}"
        )
    _check_header(model)
    shapes = [check_shape(tuple(model.shape), "the input")]
    used_values: set[int] = set()
    checked_tensors: set[tuple[object, ...]] = set()
    for index, node in enumerate(model.nodes):
        try:
            shapes.append(_check_node(node, shapes, checked_tensors))
        except InputError as error:
            raise InputError(f"node {index} ({format_value(node.op)}, {format_value(node.name)}): {error}") from None
        used_values.update(node.inputs)
    _check_outputs(model, shapes, used_values)
    return shapes


def list_outputs(model: BnnModel) -> tuple[ModelOutput, ...]:
    """Return the outputs of a model. If the model lists no outputs, its last value is the only output."""
    return tuple(model.outputs) or (ModelOutput("output", len(model.nodes)),)


def check_vector_output(model: BnnModel, shapes: Sequence[Shape]) -> ModelOutput:
    """Return the only output of a model. Raise InputError for several outputs, or for a feature map as output."""
    outputs = list_outputs(model)
    if len(outputs) > 1:
        names = ", ".join(format_value(output.name) for output in outputs)
        raise InputError(f"the model must have one output, a vector; it has {len(outputs)}: {names}")
    if shapes[outputs[0].value][:2] != (1, 1):
        raise InputError(f"the output must be a vector (1 x 1 x c); it has the shape {shapes[outputs[0].value]}")
    return outputs[0]


def find_version_2_feature(model: BnnModel, shapes: Sequence[Shape]) -> str | None:
    """Return the first part of a model that version 1 of the file format cannot store, or None."""
    for index, node in enumerate(model.nodes):
        location = f"node {index} ({format_value(node.op)}, {format_value(node.name)})"
        if OPERATORS[node.op].version > 1:
            return f"the operator of {location}"
        if node.op == "add" and shapes[node.inputs[0]] != shapes[node.inputs[1]]:
            return f"the addition of two shapes in {location}"
        if node.op == "bconv" and count_sum_terms(node.attributes, shapes[node.inputs[0]]) > MAX_SUM_TERMS_VERSION_1:
            return f"a sum of more than {MAX_SUM_TERMS_VERSION_1} terms in {location}"
    return "a list of outputs" if model.outputs else None


def _check_outputs(model: BnnModel, shapes: Sequence[Shape], used_values: set[int]) -> None:
    """Check the outputs and classes of a model, and that every value is used."""
    if not isinstance(model.outputs, tuple | list) or len(model.outputs) > MAX_OUTPUTS:
        raise InputError(f"outputs must be a list of at most {MAX_OUTPUTS}; got {format_value(model.outputs)}")
    for output in model.outputs:
        if not isinstance(output, ModelOutput) or not is_integer(output.value, 1, len(shapes) - 1):
            raise InputError(
                f"an output must have a name and a value from 1 to {len(shapes) - 1}; got {format_value(output)}"
            )
        check_text(output.name, "the name of an output")
    outputs = list_outputs(model)
    if len({output.name for output in outputs}) != len(outputs):
        raise InputError("the outputs must have different names")
    unused = set(range(len(shapes))) - used_values - {output.value for output in outputs}
    if unused:
        end = "must be used by a node or be an output" if model.outputs else "except the last must be used"
        raise InputError(f"every value {end}; value {min(unused)} is not used")
    if model.outputs and not model.classes:
        return
    if shapes[outputs[0].value] != (1, 1, len(model.classes)):
        name = "first output" if model.outputs else "last value"
        raise InputError(
            f"the {name} must have the shape 1 x 1 x {len(model.classes)} (classes); got {shapes[outputs[0].value]}"
        )


def _check_header(model: BnnModel) -> None:
    """Check everything of a model except its nodes."""
    check_text(model.name, "the model's name")
    check_text(model.writer, "the writer's name")
    IntegerAttribute(1, count=3).check(model.shape, "the input's shape")
    check_float32(model.top, "the input's top", positive=True)
    for name, numbers in (("mean", model.mean), ("std", model.std)):
        if not isinstance(numbers, tuple | list) or len(numbers) != model.shape[2]:
            got = format_value(numbers)
            raise InputError(
                f"the input's {name} must be a list of {model.shape[2]} numbers, one per channel; got {got}"
            )
        for value in numbers:
            check_float32(value, f"the input's {name}", positive=name == "std")
    check_float32(model.margin, "the input's margin", positive=True)
    if not 1 <= model.margin <= MAX_MARGIN:
        raise InputError(f"the input's margin must be from 1 to {MAX_MARGIN}; got {model.margin}")
    if not isinstance(model.classes, tuple | list):
        raise InputError(f"classes must be a list of names; got {format_value(model.classes)}")
    for name in model.classes:
        check_text(name, "a class")
    if not isinstance(model.nodes, tuple | list) or not 1 <= len(model.nodes) <= MAX_ENTRIES:
        raise InputError(f"nodes must be a list of 1 to {MAX_ENTRIES}; got {format_value(model.nodes)}")


def _check_node(node: Node, shapes: Sequence[Shape], checked_tensors: set[tuple[object, ...]]) -> Shape:
    """Check a node and return the shape of its value. `checked_tensors` were checked for earlier nodes."""
    check_text(node.name, "the name")
    operator = lookup(OPERATORS, shorten_name(node.op), "op", "docs/format.md")
    check_known_names(map(shorten_name, node.attributes), operator.attributes, "key of this op", "docs/format.md")
    if not isinstance(node.inputs, tuple | list) or len(node.inputs) != operator.num_inputs:
        raise InputError(f"its inputs must be a list of {operator.num_inputs}; got {format_value(node.inputs)}")
    for value in node.inputs:
        if not is_integer(value, 0, len(shapes) - 1):
            raise InputError(f"its inputs must be earlier values, 0 to {len(shapes) - 1}; got {format_value(value)}")
    for key, attribute in operator.attributes.items():
        if key in node.attributes:
            attribute.check(node.attributes[key], key)
        elif key not in operator.optional:
            raise InputError(f"the key {key!r} is missing")
    inputs = [shapes[value] for value in node.inputs]
    shape = check_shape(operator.infer_shape(node.attributes, inputs), "its value")
    input_shape = inputs[0] if inputs else shape
    sizes = _allowed_sizes(node.attributes, input_shape, shape)
    for key, attribute in operator.attributes.items():
        tensor = node.attributes.get(key)
        if isinstance(attribute, TensorAttribute) and tensor is not None and not isinstance(tensor, str):
            attribute.check_sizes(tensor, key, sizes)
            check = (id(tensor), attribute, input_shape if attribute.index_axis is not None else None)
            # Check each tensor only once, because thousands of nodes may share a tensor
            if check not in checked_tensors:
                attribute.check_values(tensor, key, input_shape)
                checked_tensors.add(check)
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
_INPUT_SIGNS: dict[str, Attribute] = {
    "threshold": TensorAttribute(("f32",), ("in",), "mean", rejects_nan=True),
    "pad_sign": IntegerAttribute(-1, 1),
}

_ACTIVATIONS = ("sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardsigmoid", "hardswish")

OPERATORS: dict[str, Operator] = {
    "conv": Operator(
        infer_conv_shape,
        {
            "weight": TensorAttribute(("f32", "f16"), ("out", "kh", "kw", "in/groups")),
            "bias": _PER_OUTPUT_CHANNEL,
            **_CONV_WINDOW,
        },
        ("bias",),
    ),
    "bconv": Operator(infer_bconv_shape, {**_BINARY_WEIGHT, **_INPUT_SIGNS, **_SCALES, **_CONV_WINDOW}, ("spatial",)),
    "wconv": Operator(infer_conv_shape, {**_BINARY_WEIGHT, **_SCALES, **_CONV_WINDOW}, ("spatial",)),
    "affine": Operator(infer_same_shape, {"a": _PER_INPUT_CHANNEL, "b": _PER_INPUT_CHANNEL}),
    "add": Operator(infer_broadcast_shape, num_inputs=2),
    "hardtanh": Operator(infer_same_shape),
    "relu": Operator(infer_same_shape),
    "prelu": Operator(infer_same_shape, {"slope": _PER_INPUT_CHANNEL}),
    "shift": Operator(infer_same_shape, {"b": _PER_INPUT_CHANNEL}),
    "maxpool": Operator(partial(infer_pool_shape, allow_low_pad=True), _POOL_WINDOW),
    "avgpool": Operator(partial(infer_pool_shape, allow_low_pad=False), _POOL_WINDOW),
    "mean": Operator(lambda keys, inputs: (1, 1, inputs[0][2])),
    "subsample": Operator(infer_subsample_shape, {"stride": IntegerAttribute(1, count=2)}),
    "channels": Operator(infer_channels_shape, {"before": IntegerAttribute(0), "after": IntegerAttribute(0)}),
    "flatten": Operator(lambda keys, inputs: (1, 1, math.prod(inputs[0]))),
    "softmax": Operator(infer_same_shape),
    "multiply": Operator(infer_broadcast_shape, num_inputs=2, version=2),
    "matmul": Operator(infer_matmul_shape, {"transpose": IntegerAttribute(0, 1)}, num_inputs=2, version=2),
    "constant": Operator(
        infer_constant_shape, {"value": TensorAttribute(("f32", "f16"), ("h", "w", "c"))}, num_inputs=0, version=2
    ),
    "clamp": Operator(
        infer_same_shape, {"low": NumberAttribute(), "high": NumberAttribute()}, ("low", "high"), version=2
    ),
    **{op: Operator(infer_same_shape, version=2) for op in _ACTIVATIONS},
    "elu": Operator(infer_same_shape, {"alpha": NumberAttribute()}, version=2),
    "take": Operator(
        infer_take_shape,
        {
            **{
                key: TensorAttribute(("i32",), ("n",), index_axis=axis)
                for axis, key in enumerate(("rows", "columns", "channels"))
            },
            "fill": NumberAttribute(),
        },
        ("rows", "columns", "channels", "fill"),
        version=2,
    ),
    "strided": Operator(
        infer_strided_shape,
        {
            "shape": IntegerAttribute(1, count=3),
            "lengths": IntegerAttribute(1, MAX_VALUE_ELEMENTS, count=range(1, MAX_FACTORS + 1)),
            "strides": IntegerAttribute(-MAX_VALUE_ELEMENTS, MAX_VALUE_ELEMENTS, count=range(1, MAX_FACTORS + 1)),
            "offset": IntegerAttribute(0, MAX_VALUE_ELEMENTS),
        },
        version=2,
    ),
    "normalize": Operator(
        infer_normalize_shape,
        {
            "groups": IntegerAttribute(1),
            "spatial": IntegerAttribute(0, 1),
            "eps": NumberAttribute(allows_negative=False),
            "a": _PER_INPUT_CHANNEL,
            "b": _PER_INPUT_CHANNEL,
        },
        version=2,
    ),
    "bilinear": Operator(
        infer_resized_shape,
        {"size": IntegerAttribute(1, count=2), "align_corners": IntegerAttribute(0, 1)},
        version=2,
    ),
    "adaptive_avgpool": Operator(infer_resized_shape, {"size": IntegerAttribute(1, count=2)}, version=2),
}
