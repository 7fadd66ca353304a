"""Export a network as a .bnn model, and explain why a method cannot be exported."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.deploy.engine.attributes import IntegerAttribute
from lcrbnn.deploy.engine.graph import BnnModel, Node
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.deploy.export.adjust_rounding import adjust_rounding
from lcrbnn.deploy.export.fold_batch_norm import fold_affine_nodes, round_to_float32
from lcrbnn.deploy.export.graph_builder import GraphBuilder, NodeBuilder, Value, raise_export_error
from lcrbnn.deploy.export.module_rules import export_module
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
    _check_network(net)
    model_input = _normalize_model_input(images)
    builder = GraphBuilder(model_input.shape)
    with eval_mode(net), torch.no_grad():
        output = builder.resolve(export_module(builder, "", net, builder.input_value), "")
        builder.remove_unused_nodes(_restore_torch_order(builder, output))
        nodes = fold_affine_nodes(builder.nodes)
        round_to_float32(nodes)
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


def _restore_torch_order(builder: GraphBuilder, output: Value) -> Value:
    """Return the output in PyTorch's order. A flattened map needs a permutation, written as a linear layer."""
    if output.feature_order is None:
        return output
    return export_module(builder, "order", _make_identity_linear(output.shape[2]), output)


def _make_identity_linear(n: int) -> nn.Linear:
    linear = nn.Linear(n, n, bias=False)
    linear.weight.copy_(torch.eye(n))
    return linear


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
