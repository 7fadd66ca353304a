"""Binary layers as nodes: bits, thresholds, and the numbers that their sums are scaled with."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.bits import pack
from lcrbnn.engine.format import Bits
from lcrbnn.export.draft import Draft, Source, Value, Window, refuse
from lcrbnn.export.signs import SIGNS, numbers
from lcrbnn.layers import BinaryConv2d, BinaryLayer, BinaryLinear
from lcrbnn.methods import Binary

CLOSE = 2.0**-21  # how near a product of two factors must come to a scale to stand for it


def binary_conv(draft: Draft, name: str, layer: BinaryConv2d, x: Value, window: Window) -> Value:
    """Emit a binary convolution."""
    return _emit(draft, name, layer, x, window, (*window.size(x.shape, name), layer.out_channels))


def binary_linear(draft: Draft, name: str, layer: BinaryLinear, x: Value) -> Value:
    """Emit a binary linear layer: a convolution of one pixel."""
    return _emit(draft, name, layer, x, Window((1, 1)), (1, 1, layer.out_features))


def _emit(draft: Draft, name: str, layer: BinaryLayer, x: Value, window: Window, shape: tuple[int, int, int]) -> Value:
    if layer.method.real_weights:
        refuse(name, "its weights are real (32/1, the first of two steps): train the second step, and export that")
    if layer.input_binarizer is None and layer.method.standardizes_real_input:
        refuse(
            name,
            f"{layer.method.name} standardises real activations by the mean and the deviation of each image, and the "
            "format has no such step",
        )
    w = layer.binary_weight()
    _two_levels(name, layer, w)
    signs = numbers(w.signs)
    rows = x.arranged(signs) if signs.ndim == 2 else signs.transpose(0, 2, 3, 1).reshape(len(signs), -1)
    a, spatial = _factors(w.scale, shape, name)
    b = np.zeros(len(signs))
    keys: dict[str, Any] = {"weight": Bits(pack(rows), rows.shape[1])}
    binarizer = layer.input_binarizer
    if binarizer is None:
        border = getattr(layer, "padding_value", 0.0)
        if any(window.pad) and border != 0:
            refuse(name, f"its real input is padded with {border:g}, and the format has 0 there")
    else:
        scale, offset = _of_activations(name, layer, spatial is not None)
        keys |= {"threshold": _threshold(name, layer, x), "pad_sign": _pad_sign(name, layer, window)}
        b = a * offset * signs.reshape(len(signs), -1).sum(1, dtype=np.float64)
        a = a * scale
    if layer.bias is not None:
        b = b + numbers(layer.bias)
    keys |= {"a": a, "b": b} | ({} if spatial is None else {"spatial": spatial}) | window.keys()
    made = draft.emit("wconv" if binarizer is None else "bconv", name, x, shape, after_sums(layer), **keys)
    if binarizer is not None:
        made.step.sign = lambda y: binarizer(y).signs
    return replace(made, order=None)


def _two_levels(name: str, layer: BinaryLayer, w: Binary) -> None:
    """Refuse weights that are not a sign and a scale each."""
    method = layer.method.name
    if w.bases != 1:
        refuse(name, f"{method} has {w.bases} binary bases a weight, and the format has 1")
    if w.offset is not None:
        refuse(name, f"{method} has two levels that are not around 0, and the format's are -1 and +1 times a scale")
    if w.soft:
        refuse(name, f"{method}: {w.soft}")


def after_sums(layer: BinaryLayer) -> Source:
    """What the layer makes of its sums, (n, out, h, w) or (n, out): its own code, with the multiplication left out."""

    def run(sums: Tensor) -> Tensor:
        twin = copy(layer)
        twin.__dict__["_multiply"] = lambda x, signs, border: sums
        return BinaryLayer.forward(twin, _example(layer))

    return run


def _example(layer: BinaryLayer) -> Tensor:
    return (
        torch.zeros(1, layer.in_channels, 1, 1)
        if isinstance(layer, BinaryConv2d)
        else torch.zeros(1, layer.weight.shape[1])
    )


def _of_activations(name: str, layer: BinaryLayer, spatial: bool) -> tuple[float, float]:
    assert layer.input_binarizer is not None
    bits = layer.input_binarizer.bits
    if bits != 1:
        refuse(name, f"{layer.method.name} gives its activations {bits} bits, and the format has 1 or real ones")
    example = _example(layer)  # twice: a scale of each sample shows as two
    seen: Binary = layer.input_binarizer(torch.cat([example, example]))
    for what in (seen.scale, seen.offset):
        if what is not None and what.numel() != 1:
            each = what.shape[0] == 2 == what.numel()
            by = "a number of each image's own" if each else f"a tensor of shape {tuple(what.shape)}"
            refuse(name, f"{layer.method.name} scales activations by {by}, and the format by one number")
    if layer.input_binarizer.real_border and seen.offset is not None:
        refuse(
            name,
            f"{layer.method.name} has levels of activations around a learned centre and a border of 0 beside them, and "
            "the format has levels around 0, or a border that is one of them",
        )
    if spatial and seen.offset is not None:
        refuse(
            name,
            f"{layer.method.name} has an offset of activations and a scale a position, and the format has not both",
        )
    return (
        1.0 if seen.scale is None else float(seen.scale),
        0.0 if seen.offset is None else float(seen.offset),
    )


def _threshold(name: str, layer: BinaryLayer, x: Value) -> np.ndarray | str:
    assert layer.input_binarizer is not None
    rule = SIGNS.get(type(layer.input_binarizer))
    found = _own_thresholds(name, layer, x.shape[2]) if rule is None else rule(layer.input_binarizer, x.shape[2])
    return found if isinstance(found, str) else x.arranged(found)


def _own_thresholds(name: str, layer: BinaryLayer, channels: int) -> np.ndarray:
    """What a method says that is not the package's."""
    assert layer.input_binarizer is not None
    kind, said = type(layer.input_binarizer).__name__, layer.input_binarizer.thresholds()
    if said is None:
        known = ", ".join(kind.__name__ for kind in SIGNS)
        refuse(
            name, f"nothing says how a {kind} takes signs: it has no `thresholds` of its own, and is none of {known}"
        )
    if said.dim() > 1 or said.numel() not in (1, channels):
        refuse(name, f"the thresholds of a {kind} are of shape {tuple(said.shape)}, not one or {channels} numbers")
    return np.ascontiguousarray(np.broadcast_to(numbers(said.float()).reshape(-1), (channels,)))


def _pad_sign(name: str, layer: BinaryLayer, window: Window) -> int:
    if not any(window.pad):
        return 0
    assert layer.input_binarizer is not None
    value = getattr(layer, "padding_value", 0.0)
    if layer.input_binarizer.real_border and value != 0:
        refuse(name, f"a padding_value of {value:g} is no sign among the learned levels of {layer.method.name}")
    found = layer.input_binarizer.padding_sign(value)
    if found not in (-1, 0, 1):
        refuse(
            name, f"a padding_value of {value:g} is {found:g} among the signs of {layer.method.name}, not -1, 0 or 1"
        )
    return int(found)


def _factors(scale: Tensor | None, shape: tuple[int, int, int], name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """A scale of weights as float64: one number a channel, and one a position (or a value) where it has any."""
    h, w, out = shape
    if scale is None:
        return np.ones(out), None
    values = numbers(scale).astype(np.float64)
    if values.ndim < 3 or values.shape[1:] == (1, 1):
        return np.broadcast_to(values.reshape(-1), out).copy(), None
    if any(s not in (1, n) for s, n in zip(values.shape, (out, h, w), strict=True)):
        refuse(
            name,
            f"its scale was learned for outputs of {values.shape[1]} x {values.shape[2]}, and this one has {h} x {w}",
        )
    values = np.broadcast_to(values, (out, h, w))
    c, i, j = np.unravel_index(np.abs(values).argmax(), values.shape)
    if values[c, i, j] == 0:
        return np.zeros(out), None
    a, spatial = values[:, i, j].copy(), values[c] / values[c, i, j]
    if np.all(np.abs(a[:, None, None] * spatial - values) <= CLOSE * np.abs(values)):
        return a, spatial[:, :, None]
    return np.ones(out), values.transpose(1, 2, 0).copy()
