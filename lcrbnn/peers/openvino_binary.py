"""OpenVINO's BinaryConvolution, which nothing else makes models for: a graph built node by node from ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lcrbnn.bits import unpack
from lcrbnn.engine.check import shapes
from lcrbnn.engine.format import Model, Node
from lcrbnn.errors import InputError

Kept = list[Any]  # arrays that OpenVINO reads without owning


def build(model: Model, ov: Any, kept: Kept, batch: int) -> Any:
    """The OpenVINO model of ours: input (batch, c, h, w), output (batch, classes); its op takes fixed shapes only."""
    import openvino.opset1 as o

    h, w, c = model.shape
    images = o.parameter([batch, c, h, w], np.float32, name="images")
    made, sizes = [images], shapes(model)
    for node in model.nodes:
        made.append(RULES[node.op](o, ov, node, [made[i] for i in node.inputs], sizes[node.inputs[0]][2], kept))
    logits = o.reshape(made[-1], np.array([0, -1], np.int64), special_zero=True)
    return ov.Model([o.result(logits)], [images], model.name or "lcrbnn")


def _window(node: Node) -> dict[str, list[int]]:
    top, left, bottom, right = node.keys["pad"]
    return {"strides": list(node.keys["stride"]), "pads_begin": [top, left], "pads_end": [bottom, right]}


def _channel(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32).reshape(1, -1, 1, 1)


def _conv(o: Any, ov: Any, node: Node, inputs: list[Any], channels: int, kept: Kept) -> Any:
    if node.keys["groups"] != 1:
        raise InputError(f"{node.name}: groups are not written for OpenVINO")
    weight = np.ascontiguousarray(node.keys["weight"].astype(np.float32).transpose(0, 3, 1, 2))
    y = o.convolution(inputs[0], weight, **_window(node), dilations=list(node.keys["dilation"]))
    return o.add(y, _channel(node.keys["bias"])) if "bias" in node.keys else y


def _bconv(o: Any, ov: Any, node: Node, inputs: list[Any], channels: int, kept: Kept) -> Any:
    keys = node.keys
    if keys["groups"] != 1 or isinstance(keys["threshold"], str) or "spatial" in keys:
        raise InputError(f"{node.name}: OpenVINO's binary convolution has no groups, mean thresholds or spatial scales")
    below = _channel(np.nextafter(keys["threshold"], np.float32(-np.inf)))  # its quantiser asks x > t, ours x >= t
    bits = o.fake_quantize(inputs[0], below, below, np.float32(0), np.float32(1), 2)
    signs = unpack(keys["weight"].packed, keys["weight"].n).reshape(-1, *keys["kernel"], channels)
    packed = np.packbits(signs.transpose(0, 3, 1, 2).reshape(-1) > 0, bitorder="little")
    tensor = ov.Tensor(packed, [len(signs), channels, *keys["kernel"]], ov.Type.u1)
    kept += [packed, tensor]
    y = o.binary_convolution(
        bits,
        ov.op.Constant(tensor, shared_memory=False),
        **_window(node),
        dilations=list(keys["dilation"]),
        mode="xnor-popcount",
        pad_value=float(keys["pad_sign"]),
    )
    return o.add(o.multiply(y, _channel(keys["a"])), _channel(keys["b"]))


def _pool(kind: str) -> Callable[..., Any]:
    def rule(o: Any, ov: Any, node: Node, inputs: list[Any], channels: int, kept: Kept) -> Any:
        window, kernel = _window(node), list(node.keys["kernel"])
        if kind == "max":
            return o.max_pool(inputs[0], **window, kernel_shape=kernel)
        return o.avg_pool(inputs[0], **window, kernel_shape=kernel, exclude_pad=True)

    return rule


def _subsample(o: Any, ov: Any, node: Node, inputs: list[Any], channels: int, kept: Kept) -> Any:
    begin, end, stride = (np.array(v, np.int64) for v in ([0] * 4, [0] * 4, [1, 1, *node.keys["stride"]]))
    return o.strided_slice(inputs[0], begin, end, stride, [0] * 4, [1] * 4)


def _channels(o: Any, ov: Any, node: Node, inputs: list[Any], channels: int, kept: Kept) -> Any:
    before, after = (np.array([0, node.keys[key], 0, 0], np.int64) for key in ("before", "after"))
    return o.pad(inputs[0], before, after, "constant", np.float32(0))


def _affine(o: Any, ov: Any, node: Node, inputs: list[Any], channels: int, kept: Kept) -> Any:
    return o.add(o.multiply(inputs[0], _channel(node.keys["a"])), _channel(node.keys["b"]))


RULES: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "bconv": _bconv,
    "affine": _affine,
    "add": lambda o, ov, node, inputs, channels, kept: o.add(*inputs),
    "hardtanh": lambda o, ov, node, inputs, channels, kept: o.clamp(inputs[0], -1.0, 1.0),
    "relu": lambda o, ov, node, inputs, channels, kept: o.relu(inputs[0]),
    "prelu": lambda o, ov, node, inputs, channels, kept: o.prelu(inputs[0], node.keys["slope"]),
    "shift": lambda o, ov, node, inputs, channels, kept: o.add(inputs[0], _channel(node.keys["b"])),
    "maxpool": _pool("max"),
    "avgpool": _pool("avg"),
    "subsample": _subsample,
    "channels": _channels,
    "mean": lambda o, ov, node, inputs, channels, kept: o.reduce_mean(inputs[0], np.array([2, 3]), keep_dims=True),
}
