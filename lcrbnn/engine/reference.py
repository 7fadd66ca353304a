"""What a model computes, written to be read: the judge of every engine, slow and plain.

Sums of signs are exact. Sums of numbers are taken in double precision and rounded once: what float32 comes near in any
order. Everything else is float32, an operation at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from lcrbnn.bits import unpack
from lcrbnn.engine import Bits, Model, Node
from lcrbnn.engine.check import shapes
from lcrbnn.errors import InputError


def numbers(model: Model, pixels: np.ndarray) -> np.ndarray:
    """Return the float32 input of a model for pixels of 0 to its top, (n, h, w, c)."""
    top, mean, std = (np.array(value, np.float32) for value in (model.top, model.mean, model.std))
    return (pixels.astype(np.float32) / top - mean) / std


def scale_pixels(model: Model, pixels: np.ndarray) -> np.ndarray:
    """Return pixels of 8 bits, 0 to 255, as float32 pixels from 0 to the model's top."""
    return pixels.astype(np.float32) * (np.float32(model.top) / np.float32(255))


def run(model: Model, images: np.ndarray) -> np.ndarray:
    """Return the answer, (n, classes), for images as `values` takes them."""
    return values(model, images)[-1].reshape(len(images), -1)


def values(model: Model, images: np.ndarray) -> list[np.ndarray]:
    """Return every value, float32 (n, h, w, c), of a batch of inputs; the inputs (see `numbers`) are the first."""
    shapes(model)
    if images.dtype != np.float32 or images.ndim != 4 or images.shape[1:] != tuple(model.shape):
        raise InputError(
            f"images are float32 (n, {', '.join(map(str, model.shape))}); got {images.dtype} {images.shape}"
        )
    made = [images]
    with np.errstate(all="ignore"):  # infinities and NaN go their way, as in an engine
        for node in model.nodes:
            made.append(_OPS[node.op](node, *(made[value] for value in node.inputs)))
    return made


def signs(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the signs a bconv makes of its input, int8 ±1: −1 below the threshold, +1 otherwise."""
    threshold = node.keys["threshold"]
    if isinstance(threshold, str):  # "mean": of all numbers of an image
        threshold = x.mean(axis=(1, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    return np.where(x < threshold, np.int8(-1), np.int8(1))


def accumulators(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the integer sums of a bconv before any scale, int32 (n, h', w', out)."""
    inputs = signs(node, x).astype(np.float32)  # whole numbers up to 2^20: float32 adds them exactly
    weight = _signed_weight(node, x).astype(np.float32)
    return _convolve(node.keys, inputs, weight, outside=node.keys["pad_sign"]).astype(np.int32)


def _bconv(node: Node, x: np.ndarray) -> np.ndarray:
    return _scaled(node.keys, accumulators(node, x).astype(np.float32))


def _wconv(node: Node, x: np.ndarray) -> np.ndarray:
    weight = _signed_weight(node, x).astype(np.float64)
    return _scaled(node.keys, _convolve(node.keys, x.astype(np.float64), weight).astype(np.float32))


def _conv(node: Node, x: np.ndarray) -> np.ndarray:
    y = _convolve(node.keys, x.astype(np.float64), node.keys["weight"].astype(np.float64)).astype(np.float32)
    return y + node.keys["bias"] if "bias" in node.keys else y


def _scaled(keys: Mapping[str, Any], acc: np.ndarray) -> np.ndarray:
    """a · acc + b, or a · (spatial · acc) + b; each operation rounds to float32."""
    if "spatial" in keys:
        acc = keys["spatial"] * acc
    return keys["a"] * acc + keys["b"]


def _signed_weight(node: Node, x: np.ndarray) -> np.ndarray:
    """Weights of ±1, [out, kh, kw, in/groups]."""
    bits: Bits = node.keys["weight"]
    return unpack(bits.packed, bits.n).reshape(-1, *node.keys["kernel"], x.shape[3] // node.keys["groups"])


def _convolve(keys: Mapping[str, Any], x: np.ndarray, weight: np.ndarray, outside: float = 0) -> np.ndarray:
    """Sum weight × input over the window, a place of the window at a time; each group apart."""
    groups, out = keys["groups"], len(weight)
    total: Any = 0
    for ky, kx, seen in _places(keys, x, outside):
        pixels = seen.reshape(-1, groups, x.shape[3] // groups).transpose(1, 0, 2)  # group, pixel, channel
        part = weight[:, ky, kx].reshape(groups, out // groups, -1).transpose(0, 2, 1)  # group, channel, out
        total = total + pixels @ part
    return total.transpose(1, 0, 2).reshape(*seen.shape[:3], out)


def _places(keys: Mapping[str, Any], x: np.ndarray, outside: float) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield each place (ky, kx) of the window with what it sees: its input for every output pixel."""
    (kh, kw), (sy, sx), (dy, dx) = keys["kernel"], keys["stride"], keys.get("dilation", (1, 1))
    top, left, bottom, right = keys["pad"]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=outside)
    h = (x.shape[1] - dy * (kh - 1) - 1) // sy + 1
    w = (x.shape[2] - dx * (kw - 1) - 1) // sx + 1
    for ky in range(kh):
        for kx in range(kw):
            yield ky, kx, x[:, ky * dy :: sy, kx * dx :: sx][:, :h, :w]


def _maxpool(node: Node, x: np.ndarray) -> np.ndarray:
    return np.max([seen for _, _, seen in _places(node.keys, x, -np.inf)], axis=0)


def _avgpool(node: Node, x: np.ndarray) -> np.ndarray:
    total = np.sum([seen for _, _, seen in _places(node.keys, x.astype(np.float64), 0)], axis=0)
    inside = np.sum([seen for _, _, seen in _places(node.keys, np.ones(x.shape), 0)], axis=0)
    return (total / inside).astype(np.float32)


def _channels(node: Node, x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (0, 0), (node.keys["before"], node.keys["after"])))


def _softmax(node: Node, x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis=3, keepdims=True))
    return (e / e.sum(axis=3, keepdims=True)).astype(np.float32)


_OPS: dict[str, Callable[..., np.ndarray]] = {
    "conv": _conv,
    "bconv": _bconv,
    "wconv": _wconv,
    "affine": lambda node, x: node.keys["a"] * x + node.keys["b"],
    "add": lambda node, x, y: x + y,
    "hardtanh": lambda node, x: np.minimum(np.maximum(x, np.float32(-1)), np.float32(1)),
    "relu": lambda node, x: np.maximum(x, np.float32(0)),
    "prelu": lambda node, x: np.where(x >= 0, x, node.keys["slope"] * x),
    "shift": lambda node, x: x + node.keys["b"],
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "mean": lambda node, x: x.mean(axis=(1, 2), dtype=np.float64, keepdims=True).astype(np.float32),
    "subsample": lambda node, x: x[:, :: node.keys["stride"][0], :: node.keys["stride"][1]],
    "channels": _channels,
    "flatten": lambda node, x: x.reshape(len(x), 1, 1, -1),
    "softmax": _softmax,
}
