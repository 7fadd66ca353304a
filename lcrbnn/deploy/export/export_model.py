"""Export a network as a .bnn model, and explain why a method cannot be exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.deploy.engine.attributes import IntegerAttribute
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.deploy.export.graph.adjust_rounding import adjust_rounding
from lcrbnn.deploy.export.graph.fold_batch_norm import fold_affine_nodes, round_to_float32
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, NodeBuilder, Value, raise_export_error
from lcrbnn.deploy.export.module_rules import export_module
from lcrbnn.deploy.export.rules.arithmetic_rules import describe_shape
from lcrbnn.deploy.export.rules.linear_rules import export_matrix_product
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.model_hooks import eval_mode, fit_output_shapes


@dataclass(frozen=True)
class ModelInput:
    """Input shape, preprocessing and class names of a network. A row of DATASETS has the same data."""

    shape: tuple[int, int, int]  # height, width and number of channels of an input image
    classes: tuple[str, ...]
    top: float = 255.0  # largest pixel value; a pixel becomes (pixel / top - mean) / std
    mean: tuple[float, ...] = ()  # mean per channel of pixel / top; empty = 0
    std: tuple[float, ...] = ()  # standard deviation per channel of pixel / top; empty = 1
    margin: float = 1.0  # ratio of the resized picture's shorter side to the side of the centre crop

    @classmethod
    def from_dataset(cls, dataset: DataSet) -> ModelInput:
        """Return the input of a data set. Classes without names are numbered."""
        names = dataset.class_names or map(str, range(dataset.num_classes))
        return cls(
            (dataset.image_size, dataset.image_size, dataset.channels),
            tuple(names),
            dataset.max_pixel_value,
            dataset.mean,
            dataset.std,
            dataset.resize_ratio,
        )


def export_model(net: nn.Module, images: DataSet | ModelInput, name: str, *, half: bool = False) -> BnnModel:
    """Return the .bnn model (docs/format.md) of a network for the images of a data set or a ModelInput.

    The forward of a custom module is traced; it may only call functions that the format can represent.
    Batch norms are folded into the layers before them. Folding changes no sign that depends on one integer sum alone.
    `half` stores the weights of real convolutions and linear layers as float16.
    """
    return convert_network(net, images, name, half=half)


def convert_network(
    net: nn.Module, images: DataSet | ModelInput, name: str, *, half: bool = False, adjusts_rounding: bool = True
) -> BnnModel:
    """Return what export_model returns. Without `adjusts_rounding`, which takes most of the time, signs may differ."""
    _check_network(net)
    model_input = _normalize_model_input(images)
    builder = GraphBuilder(model_input.shape)
    with eval_mode(net), torch.no_grad():
        outputs = _arrange_outputs(builder, export_module(builder, "", net, builder.input_value))
        builder.remove_unused_nodes(list(outputs.values()))
        # As readers of their values, the outputs take part in the folding.
        readers = {name: NodeBuilder("output", name, [value.node], value.shape) for name, value in outputs.items()}
        nodes = [node for node in fold_affine_nodes([*builder.nodes, *readers.values()]) if node.op != "output"]
        round_to_float32(nodes)
        if adjusts_rounding:
            adjust_rounding(nodes)
    index: dict[NodeBuilder, int] = {builder.input_value.node: 0} | {node: i for i, node in enumerate(nodes, 1)}
    model = BnnModel(
        name=name,
        shape=model_input.shape,
        top=model_input.top,
        mean=(0.0,) * model_input.shape[2] if model_input.mean in ((), None) else model_input.mean,
        std=(1.0,) * model_input.shape[2] if model_input.std in ((), None) else model_input.std,
        margin=model_input.margin,
        classes=model_input.classes,
        nodes=tuple(Node(n.op, n.name, tuple(index[i] for i in n.inputs), _final_attributes(n, half)) for n in nodes),
        outputs=_list_model_outputs(outputs, readers, index, model_input.classes),
    )
    infer_shapes(model)
    return model


def _normalize_model_input(images: DataSet | ModelInput) -> ModelInput:
    """Return a ModelInput with plain Python numbers instead of arrays, tensors and NumPy numbers."""
    if not isinstance(images, DataSet | ModelInput):
        raise InputError(f"images must be a DataSet or an lcrbnn.deploy.export.ModelInput; got {type(images).__name__}")
    model_input = ModelInput.from_dataset(images) if isinstance(images, DataSet) else images
    normalized = ModelInput(*(_to_python_numbers(getattr(model_input, field.name)) for field in fields(model_input)))
    IntegerAttribute(1, count=3).check(normalized.shape, "the input's shape")
    return normalized


def _to_python_numbers(value: Any) -> Any:
    """Return arrays and lists as tuples of Python numbers, and any other value unchanged."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        value = value.tolist()
    return tuple(map(_to_python_numbers, value)) if isinstance(value, tuple | list) else value


def _arrange_outputs(builder: GraphBuilder, result: Any) -> dict[str, Value]:
    """Return the outputs of a network by name, each in the standard layout; the result may be nested."""
    outputs: dict[str, Value] = {}
    for name, value in _name_outputs(result, ""):
        title = f"its output {name or 'output'!r}"
        if not isinstance(value, Value):
            raise_export_error("", f"{title} is a {type(value).__name__}, not a tensor of the images")
        value, shape = builder.resolve(value, ""), value.torch_shape
        if value.layout.batch_axis != 0 or shape[0] != 1 or len(shape) > 4:
            reason = f"has the shape {describe_shape(value)}; the images must be on the first of at most 4 axes"
            raise_export_error("", f"{title} {reason}")
        outputs[name or "output"] = _arrange_output(builder, value)
    if len({value.node for value in outputs.values()}) != len(outputs):
        outputs = {name: _copy_output(builder, name, value) for name, value in outputs.items()}
    return outputs


def _name_outputs(result: Any, prefix: str) -> list[tuple[str, Any]]:
    """Return the names and items of nested tuples, lists and dicts; the items of a tuple are numbered."""
    if isinstance(result, dict):
        parts = [(str(key), item) for key, item in result.items()]
    elif isinstance(result, tuple | list):
        parts = [(str(index), item) for index, item in enumerate(result)]
    else:
        return [(prefix, result)]
    return [output for key, item in parts for output in _name_outputs(item, f"{prefix}.{key}" if prefix else key)]


def _arrange_output(builder: GraphBuilder, value: Value) -> Value:
    """Return an output in its standard layout; a flattened map needs a permutation, written as a linear layer."""
    features = value.torch_shape[-1]
    if value.layout.is_vector and value.layout.stored_indices is not None and value.shape == (1, 1, features):
        return export_matrix_product(builder, "order", value, torch.eye(features))
    arranged = builder.arrange_standard(value, "output")
    return _copy_output(builder, "output", arranged) if arranged.node is builder.input_value.node else arranged


def _copy_output(builder: GraphBuilder, name: str, value: Value) -> Value:
    """Return a copy of an output: the input and a value with several names need a node of their own."""
    channels = value.shape[2]
    return builder.add_node("affine", f"{name}.copy", value, a=np.ones(channels), b=np.zeros(channels))


def _list_model_outputs(
    outputs: dict[str, Value], readers: dict[str, NodeBuilder], index: dict[NodeBuilder, int], classes: Sequence[str]
) -> tuple[ModelOutput, ...]:
    """Return the outputs to list in the file: none if the last value is the only output and a vector of the classes."""
    listed = tuple(ModelOutput(name, index[reader.inputs[0]]) for name, reader in readers.items())
    first = next(iter(outputs.values()))
    is_classifier = len(outputs) == 1 and first.layout.is_vector and bool(classes) and listed[0].value == len(index) - 1
    return () if is_classifier else listed


def _final_attributes(node: NodeBuilder, half: bool) -> dict[str, Any]:
    if not half or node.op != "conv":
        return node.attributes
    with np.errstate(over="ignore"):
        weight = node.attributes["weight"].astype(np.float16)
    if not np.isfinite(weight).all():
        raise_export_error(node.name, "its weight has numbers that float16 cannot represent; export it without half")
    return node.attributes | {"weight": weight}


def _check_network(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise InputError(f"net must be a torch.nn.Module; got {type(net).__name__}")
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.device.type != "cpu" or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            dtype_name = str(tensor.dtype).removeprefix("torch.")
            raise InputError(
                f"a network must be float32 on the CPU for export, but {name} is {dtype_name} on {tensor.device.type}; "
                "use net.float().cpu()"
            )


def explain_unexportable_method(method: Method) -> str:
    """Return why a layer of this method, with its bits and options, cannot be exported, or "" if it can."""
    net = nn.Sequential(BinaryConv2d(2, 2, 3, padding=1, method=method), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    fit_output_shapes(net, (1, 2, 4, 4))
    try:
        export_model(net, ModelInput((4, 4, 2), ("a", "b")), "trial")
    except InputError as error:
        return str(error).partition("cannot be exported: ")[2] or str(error)
    return ""
