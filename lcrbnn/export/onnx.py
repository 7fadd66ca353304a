"""The same network as standard ONNX, so that nobody is locked in: float convolutions of numbers that are -1 and +1.

Maps are (n, channels, h, w) there, as in PyTorch; the input is normalised as PyTorch's is. Sums of signs are whole
numbers below 2^24 and so exact in float32, in whatever order they are added. A runtime that folded the scale of a sum
into the weights would add up other numbers, and a sum of 0 would get some sign: a Clip that changes no sum is between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.bits import unpack
from lcrbnn.engine.check import shapes
from lcrbnn.engine.format import Bits, Model, Node, file_path, make_place
from lcrbnn.errors import InputError
from lcrbnn.runs.files import write_whole

OPSET = 17
IR = 9  # of the file; older runtimes read it


class Writer:
    """Collects nodes and constants under fresh names."""

    def __init__(self, onnx: Any) -> None:
        """Take the onnx package."""
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: np.ndarray) -> str:
        """Keep an array; its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def call(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def channel(self, value: np.ndarray) -> str:
        """A number a channel, shaped for (n, c, h, w)."""
        return self.constant(value.astype(np.float32).reshape(-1, 1, 1))


def to_onnx(model: Model) -> bytes:
    """The bytes of an ONNX file with input "images" (n, c, h, w), float32, and output "logits" (n, classes)."""
    try:
        import onnx
    except ImportError:
        raise InputError(
            "ONNX files are written with the package onnx, which is not installed: pip install onnx"
        ) from None
    sizes = shapes(model)
    to = Writer(onnx)
    made = ["images"]
    for index, node in enumerate(model.nodes):
        channels = sizes[node.inputs[0]][2]
        made.append(RULES[node.op](to, node, [made[i] for i in node.inputs], channels))
        to.nodes[-1].name = f"{index} {node.name}"
    h, w, c = model.shape
    to.call("Flatten", made[-1], axis=1)
    to.nodes[-1].output[0] = "logits"
    info = onnx.helper.make_tensor_value_info
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        to.nodes,
        model.name or "lcrbnn",
        [info("images", float32, ["n", c, h, w])],
        [info("logits", float32, ["n", len(model.classes)])],
        to.constants,
    )
    whole = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="lcrbnn"
    )
    onnx.checker.check_model(whole)
    return whole.SerializeToString()


def write_onnx(path: Path | str, model: Model) -> None:
    """Write the ONNX file of a model, whole or not at all, and its folder where there is none."""
    path, data = file_path(path), to_onnx(model)
    make_place(path)
    write_whole(path, [data])


def _window(node: Node) -> dict[str, Any]:
    keys = node.keys
    return {
        "kernel_shape": list(keys["kernel"]),
        "strides": list(keys["stride"]),
        "pads": list(keys["pad"]),  # top, left, bottom, right: the same order
        **({"dilations": list(keys["dilation"]), "group": keys["groups"]} if "dilation" in keys else {}),
    }


def _conv(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    weight = to.constant(node.keys["weight"].astype(np.float32).transpose(0, 3, 1, 2))
    bias = [to.constant(node.keys["bias"])] if "bias" in node.keys else []
    return to.call("Conv", inputs[0], weight, *bias, **_window(node))


def _signs(to: Writer, node: Node, x: str) -> str:
    threshold = node.keys["threshold"]
    if isinstance(threshold, str):  # "mean": of all numbers of an image
        limit = to.call("ReduceMean", x, axes=[1, 2, 3], keepdims=1)
    else:
        limit = to.channel(threshold)
    below = to.call("Less", x, limit)
    return to.call("Where", below, to.constant(np.array(-1, np.float32)), to.constant(np.array(1, np.float32)))


def _bconv(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    x, window = _signs(to, node, inputs[0]), _window(node)
    if node.keys["pad_sign"] != 0:
        top, left, bottom, right = window["pads"]
        pads = to.constant(np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
        x = to.call("Pad", x, pads, to.constant(np.array(node.keys["pad_sign"], np.float32)), mode="constant")
        window["pads"] = [0, 0, 0, 0]
    sums = to.call("Conv", x, _signed_weight(to, node, channels), **window)
    most = node.keys["weight"].n
    ends = [to.constant(np.array(end, np.float32)) for end in (-most, most)]
    return _scaled(to, node, to.call("Clip", sums, *ends))


def _wconv(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    return _scaled(to, node, to.call("Conv", inputs[0], _signed_weight(to, node, channels), **_window(node)))


def _signed_weight(to: Writer, node: Node, channels: int) -> str:
    bits: Bits = node.keys["weight"]
    signs = unpack(bits.packed, bits.n).reshape(-1, *node.keys["kernel"], channels // node.keys["groups"])
    return to.constant(signs.astype(np.float32).transpose(0, 3, 1, 2))


def _scaled(to: Writer, node: Node, y: str) -> str:
    if "spatial" in node.keys:
        y = to.call("Mul", y, to.constant(node.keys["spatial"].transpose(2, 0, 1)))
    return to.call("Add", to.call("Mul", y, to.channel(node.keys["a"])), to.channel(node.keys["b"]))


def _subsample(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    ends = [to.constant(np.array(v, np.int64)) for v in ([0, 0], [2**31, 2**31], [2, 3], list(node.keys["stride"]))]
    return to.call("Slice", inputs[0], *ends)


def _channels(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    pads = np.array([0, node.keys["before"], 0, 0, 0, node.keys["after"], 0, 0], np.int64)
    return to.call("Pad", inputs[0], to.constant(pads), mode="constant")


def _flatten(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    last = to.call("Transpose", inputs[0], perm=[0, 2, 3, 1])
    return to.call("Reshape", last, to.constant(np.array([0, -1, 1, 1], np.int64)))


def _affine(to: Writer, node: Node, inputs: list[str], channels: int) -> str:
    return to.call("Add", to.call("Mul", inputs[0], to.channel(node.keys["a"])), to.channel(node.keys["b"]))


# How each op of a graph is said in ONNX.
RULES: dict[str, Callable[[Writer, Node, list[str], int], str]] = {
    "conv": _conv,
    "bconv": _bconv,
    "wconv": _wconv,
    "affine": _affine,
    "add": lambda to, node, inputs, channels: to.call("Add", *inputs),
    "hardtanh": lambda to, node, inputs, channels: to.call(
        "Clip", inputs[0], to.constant(np.array(-1, np.float32)), to.constant(np.array(1, np.float32))
    ),
    "relu": lambda to, node, inputs, channels: to.call("Relu", inputs[0]),
    "prelu": lambda to, node, inputs, channels: to.call("PRelu", inputs[0], to.channel(node.keys["slope"])),
    "shift": lambda to, node, inputs, channels: to.call("Add", inputs[0], to.channel(node.keys["b"])),
    "maxpool": lambda to, node, inputs, channels: to.call("MaxPool", inputs[0], **_window(node)),
    "avgpool": lambda to, node, inputs, channels: to.call("AveragePool", inputs[0], **_window(node)),
    "mean": lambda to, node, inputs, channels: to.call("GlobalAveragePool", inputs[0]),
    "subsample": _subsample,
    "channels": _channels,
    "flatten": _flatten,
    "softmax": lambda to, node, inputs, channels: to.call("Softmax", inputs[0], axis=1),
}
