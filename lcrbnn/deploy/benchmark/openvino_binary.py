"""Build OpenVINO graphs with OpenVINO's operator BinaryConvolution, which no ONNX model uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.bits import unpack_signs
from lcrbnn.deploy.engine.graph import BnnModel, Node
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.errors import InputError

WeightArrays = list[Any]  # arrays of weight bits; OpenVINO reads them without a copy, so they must stay alive


def build_openvino_model(model: BnnModel, ov: Any, weight_arrays: WeightArrays, batch: int) -> Any:
    """Return the OpenVINO model from (batch, c, h, w) to (batch, classes). All shapes are fixed."""
    import openvino.opset1 as opset

    h, w, c = model.shape
    unknown_ops = sorted({node.op for node in model.nodes} - set(OPENVINO_RULES))
    if unknown_ops or model.outputs:
        reason = f"the operators {', '.join(unknown_ops)}" if unknown_ops else "a list of outputs"
        raise InputError(f"the binary convolution of OpenVINO cannot run this model: it has {reason}; use openvino")
    images = opset.parameter([batch, c, h, w], np.float32, name="images")
    values, sizes = [images], infer_shapes(model)
    for node in model.nodes:
        values.append(
            OPENVINO_RULES[node.op](
                opset, ov, node, [values[i] for i in node.inputs], sizes[node.inputs[0]][2], weight_arrays
            )
        )
    logits = opset.reshape(values[-1], np.array([0, -1], np.int64), special_zero=True)
    return ov.Model([opset.result(logits)], [images], model.name or "lcrbnn")


def _window_arguments(node: Node) -> dict[str, list[int]]:
    top, left, bottom, right = node.attributes["pad"]
    return {"strides": list(node.attributes["stride"]), "pads_begin": [top, left], "pads_end": [bottom, right]}


def _per_channel(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32).reshape(1, -1, 1, 1)


def _build_conv(opset: Any, ov: Any, node: Node, inputs: list[Any], channels: int, weight_arrays: WeightArrays) -> Any:
    if node.attributes["groups"] != 1:
        raise InputError(f"{node.name}: grouped convolutions are not supported for OpenVINO")
    weight = np.ascontiguousarray(node.attributes["weight"].astype(np.float32).transpose(0, 3, 1, 2))
    y = opset.convolution(inputs[0], weight, **_window_arguments(node), dilations=list(node.attributes["dilation"]))
    return opset.add(y, _per_channel(node.attributes["bias"])) if "bias" in node.attributes else y


def _build_bconv(opset: Any, ov: Any, node: Node, inputs: list[Any], channels: int, weight_arrays: WeightArrays) -> Any:
    attributes = node.attributes
    if attributes["groups"] != 1 or isinstance(attributes["threshold"], str) or "spatial" in attributes:
        raise InputError(
            f"{node.name}: OpenVINO's binary convolution supports no groups, mean thresholds or spatial scales"
        )
    threshold = _per_channel(
        np.nextafter(attributes["threshold"], np.float32(-np.inf))
    )  # the largest float32 below the threshold, because OpenVINO compares x > t and the format compares x >= t
    bits = opset.fake_quantize(inputs[0], threshold, threshold, np.float32(0), np.float32(1), 2)
    signs = unpack_signs(attributes["weight"].packed, attributes["weight"].n).reshape(
        -1, *attributes["kernel"], channels
    )
    packed = np.packbits(signs.transpose(0, 3, 1, 2).reshape(-1) > 0, bitorder="little")
    tensor = ov.Tensor(packed, [len(signs), channels, *attributes["kernel"]], ov.Type.u1)
    weight_arrays += [packed, tensor]
    y = opset.binary_convolution(
        bits,
        ov.op.Constant(tensor, shared_memory=False),
        **_window_arguments(node),
        dilations=list(attributes["dilation"]),
        mode="xnor-popcount",
        pad_value=float(attributes["pad_sign"]),
    )
    return opset.add(opset.multiply(y, _per_channel(attributes["a"])), _per_channel(attributes["b"]))


def _build_pool(kind: str) -> Callable[..., Any]:
    def build(opset: Any, ov: Any, node: Node, inputs: list[Any], channels: int, weight_arrays: WeightArrays) -> Any:
        window, kernel = _window_arguments(node), list(node.attributes["kernel"])
        if kind == "max":
            return opset.max_pool(inputs[0], **window, kernel_shape=kernel)
        return opset.avg_pool(inputs[0], **window, kernel_shape=kernel, exclude_pad=True)

    return build


def _build_subsample(
    opset: Any, ov: Any, node: Node, inputs: list[Any], channels: int, weight_arrays: WeightArrays
) -> Any:
    begin, end, stride = (np.array(v, np.int64) for v in ([0] * 4, [0] * 4, [1, 1, *node.attributes["stride"]]))
    return opset.strided_slice(inputs[0], begin, end, stride, [0] * 4, [1] * 4)


def _build_pad_channels(
    opset: Any, ov: Any, node: Node, inputs: list[Any], channels: int, weight_arrays: WeightArrays
) -> Any:
    before, after = (np.array([0, node.attributes[key], 0, 0], np.int64) for key in ("before", "after"))
    return opset.pad(inputs[0], before, after, "constant", np.float32(0))


def _build_affine(
    opset: Any, ov: Any, node: Node, inputs: list[Any], channels: int, weight_arrays: WeightArrays
) -> Any:
    return opset.add(opset.multiply(inputs[0], _per_channel(node.attributes["a"])), _per_channel(node.attributes["b"]))


OPENVINO_RULES: dict[str, Callable[..., Any]] = {
    "conv": _build_conv,
    "bconv": _build_bconv,
    "affine": _build_affine,
    "add": lambda opset, ov, node, inputs, channels, arrays: opset.add(*inputs),
    "hardtanh": lambda opset, ov, node, inputs, channels, arrays: opset.clamp(inputs[0], -1.0, 1.0),
    "relu": lambda opset, ov, node, inputs, channels, arrays: opset.relu(inputs[0]),
    "prelu": lambda opset, ov, node, inputs, channels, arrays: opset.prelu(inputs[0], node.attributes["slope"]),
    "shift": lambda opset, ov, node, inputs, channels, arrays: opset.add(inputs[0], _per_channel(node.attributes["b"])),
    "maxpool": _build_pool("max"),
    "avgpool": _build_pool("avg"),
    "subsample": _build_subsample,
    "channels": _build_pad_channels,
    "mean": lambda opset, ov, node, inputs, channels, arrays: opset.reduce_mean(
        inputs[0], np.array([2, 3]), keep_dims=True
    ),
}
