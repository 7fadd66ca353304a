"""Write a .bnn model as standard ONNX, for other runtimes: binary layers become float convolutions of -1 and +1.

Maps are (n, channels, h, w), as in PyTorch, and the input is normalised as PyTorch's. Sums of signs are integers below
2^24, so float32 adds them exactly in any order. A runtime could fold the scale of the sums into the weights. Then the
sums would no longer be integers, and a sum of 0 would get a random sign. A Clip that changes no sum prevents this.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.bits import unpack_signs
from lcrbnn.deploy.engine.bnn_file import check_file_path, make_parent_folder
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.deploy.export.onnx_operators import ONNX_RULES_2
from lcrbnn.errors import InputError
from lcrbnn.runs.atomic_files import write_atomic

OPSET_VERSION = 17
MIN_SHARED_INDICES = 16  # constants of more indices are stored once
IR_VERSION = 9  # IR version of the file, low enough for older runtimes


class OnnxGraph:
    """An ONNX graph under construction. Its nodes and constants have unique names."""

    def __init__(self, onnx: Any) -> None:
        """Store the onnx package."""
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._index_names: dict[Any, str] = {}  # long index arrays, which many layers have in common

    def add_constant(self, value: np.ndarray) -> str:
        """Add an array and return its name."""
        key = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()) if value.dtype == np.int64 else None
        if key in self._index_names:
            return self._index_names[key]
        name = f"c{len(self.constants)}"
        if key is not None and value.size > MIN_SHARED_INDICES:
            self._index_names[key] = name
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add_node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def add_channel_constant(self, value: np.ndarray) -> str:
        """Store one number per channel as a constant for maps (n, c, h, w). Return the name of the constant."""
        return self.add_constant(value.astype(np.float32).reshape(-1, 1, 1))


def to_onnx(model: BnnModel) -> bytes:
    """Return an ONNX file with the float32 input "images" (n, c, h, w).

    A model of one vector has the output "logits" (n, classes). The outputs of any other model have their own names.
    Maps are (n, c, h, w) and vectors are (n, c).
    """
    try:
        import onnx
    except ImportError:
        raise InputError(
            "writing ONNX files needs the package onnx, which is not installed: pip install onnx"
        ) from None
    sizes = infer_shapes(model)
    onnx_graph = OnnxGraph(onnx)
    value_names = ["images"]
    for index, node in enumerate(model.nodes):
        inputs, shapes = [value_names[i] for i in node.inputs], [sizes[i] for i in node.inputs]
        if node.op in ONNX_RULES:
            value_names.append(ONNX_RULES[node.op](onnx_graph, node, inputs, shapes[0][2]))
        else:
            value_names.append(ONNX_RULES_2[node.op](onnx_graph, node, inputs, shapes, sizes[index + 1]))
        onnx_graph.nodes[-1].name = f"{index} {node.name}"
    h, w, c = model.shape
    make_value_info = onnx.helper.make_tensor_value_info
    float32 = onnx.TensorProto.FLOAT
    output_infos = []
    for name, value in name_onnx_outputs(model).items():
        rows, columns, channels = sizes[value]
        is_vector = (rows, columns) == (1, 1)
        attributes: dict[str, Any] = {"axis": 1} if is_vector else {}
        onnx_graph.add_node("Flatten" if is_vector else "Identity", value_names[value], **attributes)
        onnx_graph.nodes[-1].output[0] = name
        output_infos.append(
            make_value_info(name, float32, ["n", channels] if is_vector else ["n", channels, rows, columns])
        )
    graph_proto = onnx.helper.make_graph(
        onnx_graph.nodes,
        model.name or "lcrbnn",
        [make_value_info("images", float32, ["n", c, h, w])],
        output_infos,
        onnx_graph.constants,
    )
    onnx_model = onnx.helper.make_model(
        graph_proto,
        opset_imports=[onnx.helper.make_opsetid("", OPSET_VERSION)],
        ir_version=IR_VERSION,
        producer_name="lcrbnn",
    )
    onnx.checker.check_model(onnx_model)
    return onnx_model.SerializeToString()


def name_onnx_outputs(model: BnnModel) -> dict[str, int]:
    """Return the value of each output by its name in ONNX, where no other value may have this name."""
    if not model.outputs:
        return {"logits": len(model.nodes)}
    names: dict[str, int] = {}
    for output in model.outputs:
        name = output.name
        while name in names or re.fullmatch(r"images|[vc]\d+|", name):
            name += "_"
        names[name] = output.value
    return names


def write_onnx(path: Path | str, model: BnnModel) -> None:
    """Write the ONNX file of a model atomically. Create the folder of the file if it does not exist."""
    path, data = check_file_path(path), to_onnx(model)
    make_parent_folder(path)
    write_atomic(path, [data])


def _window_attributes(node: Node) -> dict[str, Any]:
    attributes = node.attributes
    return {
        "kernel_shape": list(attributes["kernel"]),
        "strides": list(attributes["stride"]),
        "pads": list(attributes["pad"]),  # padding at the top, left, bottom and right, in the same order as in ONNX
        **(
            {"dilations": list(attributes["dilation"]), "group": attributes["groups"]}
            if "dilation" in attributes
            else {}
        ),
    }


def _write_conv(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    weight = graph.add_constant(node.attributes["weight"].astype(np.float32).transpose(0, 3, 1, 2))
    bias = [graph.add_constant(node.attributes["bias"])] if "bias" in node.attributes else []
    return graph.add_node("Conv", inputs[0], weight, *bias, **_window_attributes(node))


def _write_signs(graph: OnnxGraph, node: Node, x: str) -> str:
    threshold = node.attributes["threshold"]
    if isinstance(threshold, str):  # the threshold "mean" is the mean over the whole feature map of an image
        threshold_name = graph.add_node("ReduceMean", x, axes=[1, 2, 3], keepdims=1)
    else:
        threshold_name = graph.add_channel_constant(threshold)
    is_below = graph.add_node("Less", x, threshold_name)
    return graph.add_node(
        "Where", is_below, graph.add_constant(np.array(-1, np.float32)), graph.add_constant(np.array(1, np.float32))
    )


def _write_bconv(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    x, window = _write_signs(graph, node, inputs[0]), _window_attributes(node)
    if node.attributes["pad_sign"] != 0:
        top, left, bottom, right = window["pads"]
        pads = graph.add_constant(np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
        x = graph.add_node(
            "Pad", x, pads, graph.add_constant(np.array(node.attributes["pad_sign"], np.float32)), mode="constant"
        )
        window["pads"] = [0, 0, 0, 0]
    sums = graph.add_node("Conv", x, _add_signed_weight(graph, node, channels), **window)
    num_terms = node.attributes["weight"].n
    bounds = [graph.add_constant(np.array(end, np.float32)) for end in (-num_terms, num_terms)]
    return _write_scale(graph, node, graph.add_node("Clip", sums, *bounds))


def _write_wconv(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    return _write_scale(
        graph,
        node,
        graph.add_node("Conv", inputs[0], _add_signed_weight(graph, node, channels), **_window_attributes(node)),
    )


def _add_signed_weight(graph: OnnxGraph, node: Node, channels: int) -> str:
    bits: PackedSigns = node.attributes["weight"]
    signs = unpack_signs(bits.packed, bits.n).reshape(
        -1, *node.attributes["kernel"], channels // node.attributes["groups"]
    )
    return graph.add_constant(signs.astype(np.float32).transpose(0, 3, 1, 2))


def _write_scale(graph: OnnxGraph, node: Node, y: str) -> str:
    if "spatial" in node.attributes:
        y = graph.add_node("Mul", y, graph.add_constant(node.attributes["spatial"].transpose(2, 0, 1)))
    return _write_affine(graph, node, [y], len(node.attributes["a"]))


def _write_subsample(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    ends = [
        graph.add_constant(np.array(v, np.int64))
        for v in ([0, 0], [2**31, 2**31], [2, 3], list(node.attributes["stride"]))
    ]
    return graph.add_node("Slice", inputs[0], *ends)


def _write_pad_channels(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    pads = np.array([0, node.attributes["before"], 0, 0, 0, node.attributes["after"], 0, 0], np.int64)
    return graph.add_node("Pad", inputs[0], graph.add_constant(pads), mode="constant")


def _write_flatten(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    channels_last = graph.add_node("Transpose", inputs[0], perm=[0, 2, 3, 1])
    return graph.add_node("Reshape", channels_last, graph.add_constant(np.array([0, -1, 1, 1], np.int64)))


def _write_affine(graph: OnnxGraph, node: Node, inputs: list[str], channels: int) -> str:
    return graph.add_node(
        "Add",
        graph.add_node("Mul", inputs[0], graph.add_channel_constant(node.attributes["a"])),
        graph.add_channel_constant(node.attributes["b"]),
    )


# One rule per operator of the .bnn format.
ONNX_RULES: dict[str, Callable[[OnnxGraph, Node, list[str], int], str]] = {
    "conv": _write_conv,
    "bconv": _write_bconv,
    "wconv": _write_wconv,
    "affine": _write_affine,
    "add": lambda graph, node, inputs, channels: graph.add_node("Add", *inputs),
    "hardtanh": lambda graph, node, inputs, channels: graph.add_node(
        "Clip", inputs[0], graph.add_constant(np.array(-1, np.float32)), graph.add_constant(np.array(1, np.float32))
    ),
    "relu": lambda graph, node, inputs, channels: graph.add_node("Relu", inputs[0]),
    "prelu": lambda graph, node, inputs, channels: graph.add_node(
        "PRelu", inputs[0], graph.add_channel_constant(node.attributes["slope"])
    ),
    "shift": lambda graph, node, inputs, channels: graph.add_node(
        "Add", inputs[0], graph.add_channel_constant(node.attributes["b"])
    ),
    "maxpool": lambda graph, node, inputs, channels: graph.add_node("MaxPool", inputs[0], **_window_attributes(node)),
    "avgpool": lambda graph, node, inputs, channels: graph.add_node(
        "AveragePool", inputs[0], **_window_attributes(node)
    ),
    "mean": lambda graph, node, inputs, channels: graph.add_node("GlobalAveragePool", inputs[0]),
    "subsample": _write_subsample,
    "channels": _write_pad_channels,
    "flatten": _write_flatten,
    "softmax": lambda graph, node, inputs, channels: graph.add_node("Softmax", inputs[0], axis=1),
}
