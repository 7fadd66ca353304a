"""Reference implementation of every operator in NumPy, which is slow and simple. Every engine must agree with it.

Sums of signs are exact. Other sums are computed in double precision and rounded to float32 once, because float32 sums
depend on their order. Everything else is float32 and rounds after each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from lcrbnn.deploy.engine import reference_functions as functions
from lcrbnn.deploy.engine.bits import unpack_signs
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import check_vector_output, infer_shapes, list_outputs
from lcrbnn.deploy.engine.reference_tensors import TENSOR_FUNCTIONS
from lcrbnn.errors import InputError


def preprocess_pixels(model: BnnModel, pixels: np.ndarray) -> np.ndarray:
    """Return the float32 input of a model for pixels from 0 to its top, (n, h, w, c)."""
    top, mean, std = (np.array(value, np.float32) for value in (model.top, model.mean, model.std))
    return (pixels.astype(np.float32) / top - mean) / std


def scale_pixels(model: BnnModel, pixels: np.ndarray) -> np.ndarray:
    """Return 8-bit pixels, 0 to 255, scaled to float32 pixels from 0 to the model's top."""
    return pixels.astype(np.float32) * (np.float32(model.top) / np.float32(255))


def run_reference(model: BnnModel, images: np.ndarray) -> np.ndarray:
    """Return the logits, (n, classes), of preprocessed images, float32 (n, h, w, c).

    Raise InputError if the model has several outputs, or an output that is not a vector; compute_outputs has none of
    these limits.
    """
    output = check_vector_output(model, infer_shapes(model))
    return compute_values(model, images)[output.value].reshape(len(images), -1)


def compute_outputs(model: BnnModel, images: np.ndarray) -> dict[str, np.ndarray]:
    """Return each output of a model by its name, float32 (n, h, w, c), for preprocessed images."""
    values = compute_values(model, images)
    return {output.name: values[output.value] for output in list_outputs(model)}


def compute_values(model: BnnModel, images: np.ndarray) -> list[np.ndarray]:
    """Return every value of a batch, float32 (n, h, w, c). The first value is the preprocessed input itself."""
    infer_shapes(model)
    if images.dtype != np.float32 or images.ndim != 4 or images.shape[1:] != tuple(model.shape):
        raise InputError(
            f"images must be float32 (n, {', '.join(map(str, model.shape))}); got {images.dtype} {images.shape}"
        )
    values = [images]
    for node in model.nodes:
        values.append(compute_node(node, [values[value] for value in node.inputs], len(images)))
    return values


def compute_node(node: Node, inputs: list[np.ndarray], count: int) -> np.ndarray:
    """Return the value of a node, float32 (n, h, w, c), for its inputs of a batch of `count` images."""
    if node.op == "constant":
        return np.repeat(node.attributes["value"].astype(np.float32)[None], count, axis=0)
    with np.errstate(all="ignore"):  # infinities and NaN propagate, as in an engine
        return OPERATOR_FUNCTIONS[node.op](node, *inputs)


def compute_signs(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the signs of a bconv's input, int8, which are −1 below the threshold and +1 otherwise."""
    threshold = node.attributes["threshold"]
    if isinstance(threshold, str):  # the threshold "mean" is the mean over the whole feature map of an image
        threshold = x.mean(axis=(1, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    return np.where(x < threshold, np.int8(-1), np.int8(1))


def compute_accumulators(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the integer sums of a bconv before any scale, int32 (n, h', w', out)."""
    inputs = compute_signs(node, x).astype(np.float32)  # float32 adds integers up to 2^20 exactly
    weight = _unpack_weight(node, x).astype(np.float32)
    return _convolve(node.attributes, inputs, weight, padding_value=node.attributes["pad_sign"]).astype(np.int32)


def _bconv(node: Node, x: np.ndarray) -> np.ndarray:
    return _scale_sums(node.attributes, compute_accumulators(node, x).astype(np.float32))


def _wconv(node: Node, x: np.ndarray) -> np.ndarray:
    weight = _unpack_weight(node, x).astype(np.float64)
    return _scale_sums(node.attributes, _convolve(node.attributes, x.astype(np.float64), weight).astype(np.float32))


def _conv(node: Node, x: np.ndarray) -> np.ndarray:
    y = _convolve(node.attributes, x.astype(np.float64), node.attributes["weight"].astype(np.float64)).astype(
        np.float32
    )
    return y + node.attributes["bias"] if "bias" in node.attributes else y


def _scale_sums(attributes: Mapping[str, Any], sums: np.ndarray) -> np.ndarray:
    """Return a · sums + b, or a · (spatial · sums) + b. Each operation rounds to float32."""
    if "spatial" in attributes:
        sums = attributes["spatial"] * sums
    return attributes["a"] * sums + attributes["b"]


def _unpack_weight(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the weights as ±1, [out, kh, kw, in/groups]."""
    bits: PackedSigns = node.attributes["weight"]
    return unpack_signs(bits.packed, bits.n).reshape(
        -1, *node.attributes["kernel"], x.shape[3] // node.attributes["groups"]
    )


def _convolve(attributes: Mapping[str, Any], x: np.ndarray, weight: np.ndarray, padding_value: float = 0) -> np.ndarray:
    """Return the sums of weight × input over the window, computed per window position and group."""
    groups, out_channels = attributes["groups"], len(weight)
    sums: Any = 0
    for ky, kx, window_input in _iter_window_positions(attributes, x, padding_value):
        # Axes: group, pixel, input channel
        pixels = window_input.reshape(-1, groups, x.shape[3] // groups).transpose(1, 0, 2)
        position_weight = (
            weight[:, ky, kx].reshape(groups, out_channels // groups, -1).transpose(0, 2, 1)
        )  # axes: group, input channel, output channel
        sums = sums + pixels @ position_weight
    return sums.transpose(1, 0, 2).reshape(*window_input.shape[:3], out_channels)


def _iter_window_positions(
    attributes: Mapping[str, Any], x: np.ndarray, padding_value: float
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield each position (ky, kx) of the window with its input for every output pixel."""
    (kh, kw), (sy, sx), (dy, dx) = attributes["kernel"], attributes["stride"], attributes.get("dilation", (1, 1))
    top, left, bottom, right = attributes["pad"]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=padding_value)
    h = (x.shape[1] - dy * (kh - 1) - 1) // sy + 1
    w = (x.shape[2] - dx * (kw - 1) - 1) // sx + 1
    for ky in range(kh):
        for kx in range(kw):
            yield ky, kx, x[:, ky * dy :: sy, kx * dx :: sx][:, :h, :w]


def _maxpool(node: Node, x: np.ndarray) -> np.ndarray:
    return np.max([window_input for _, _, window_input in _iter_window_positions(node.attributes, x, -np.inf)], axis=0)


def _avgpool(node: Node, x: np.ndarray) -> np.ndarray:
    sums = np.sum(
        [window_input for _, _, window_input in _iter_window_positions(node.attributes, x.astype(np.float64), 0)],
        axis=0,
    )
    counts = np.sum(
        [window_input for _, _, window_input in _iter_window_positions(node.attributes, np.ones(x.shape), 0)], axis=0
    )
    return (sums / counts).astype(np.float32)


def _pad_channels(node: Node, x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (0, 0), (node.attributes["before"], node.attributes["after"])))


def _softmax(node: Node, x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x.astype(np.float64) - x.max(axis=3, keepdims=True))
    return (exponentials / exponentials.sum(axis=3, keepdims=True)).astype(np.float32)


OPERATOR_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "conv": _conv,
    "bconv": _bconv,
    "wconv": _wconv,
    "affine": lambda node, x: node.attributes["a"] * x + node.attributes["b"],
    "add": lambda node, x, y: x + y,
    "hardtanh": lambda node, x: np.minimum(np.maximum(x, np.float32(-1)), np.float32(1)),
    "relu": lambda node, x: np.maximum(x, np.float32(0)),
    "prelu": lambda node, x: np.where(x >= 0, x, node.attributes["slope"] * x),
    "shift": lambda node, x: x + node.attributes["b"],
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "mean": lambda node, x: x.mean(axis=(1, 2), dtype=np.float64, keepdims=True).astype(np.float32),
    "subsample": lambda node, x: x[:, :: node.attributes["stride"][0], :: node.attributes["stride"][1]],
    "channels": _pad_channels,
    "flatten": lambda node, x: x.reshape(len(x), 1, 1, -1),
    "softmax": _softmax,
    "multiply": lambda node, x, y: x * y,
    "clamp": lambda node, x: functions.clamp32(x, node.attributes.get("low"), node.attributes.get("high")),
    "sigmoid": lambda node, x: functions.sigmoid32(x),
    "tanh": lambda node, x: functions.tanh32(x),
    "gelu": lambda node, x: functions.gelu32(x),
    "gelu_tanh": lambda node, x: functions.gelu_tanh32(x),
    "silu": lambda node, x: functions.silu32(x),
    "hardsigmoid": lambda node, x: functions.hardsigmoid32(x),
    "hardswish": lambda node, x: functions.hardswish32(x),
    "elu": lambda node, x: functions.elu32(x, node.attributes["alpha"]),
    **TENSOR_FUNCTIONS,
}
