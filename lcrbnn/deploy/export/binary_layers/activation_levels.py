"""ACTIVATION_LEVELS has one row per method whose activations have several signs or unequal levels, as sums of signs.

An activation is sum_i scale_i * sign(x_i >= threshold_i) + offset. For most methods every x_i is the input itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.graph import PackedSigns
from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, SlidingWindow, Value, raise_export_error
from lcrbnn.nn.methods.abcnet import AbcActivation
from lcrbnn.nn.methods.adabin import AdabinActivation
from lcrbnn.nn.methods.binarizer import ActivationBinarizer
from lcrbnn.nn.methods.dorefa import DorefaActivation
from lcrbnn.nn.methods.horq import HorqActivation
from lcrbnn.nn.methods.hwgq import HwgqActivation
from lcrbnn.nn.methods.ienet import IenetActivation

# Maximum number of signs per activation; an activation of 4 bits needs 15, each with its own binary product
MAX_SIGNS = 15


class SignBase(NamedTuple):
    """One term of an activation: the scale times a sign, which is +1 where x is at least the threshold, else -1."""

    x: Value
    threshold: np.ndarray  # thresholds in float32, one per channel
    scale: float | Value  # scale of the sign: a number, or a graph value with one number per image


class ActivationLevels(NamedTuple):
    """An activation as a sum of signs and a constant."""

    bases: list[SignBase]
    offset: float


LevelRule = Callable[[GraphBuilder, str, ActivationBinarizer, Value], ActivationLevels]


def _export_abcnet(builder: GraphBuilder, name: str, binarizer: ActivationBinarizer, x: Value) -> ActivationLevels:
    assert isinstance(binarizer, AbcActivation)
    thresholds, scales = -to_array(binarizer.shift - 0.5), to_array(binarizer.scale)
    return ActivationLevels(
        [SignBase(x, _repeat(t, x), float(scale)) for t, scale in zip(thresholds, scales, strict=True)], 0.0
    )


def _export_ienet(builder: GraphBuilder, name: str, binarizer: ActivationBinarizer, x: Value) -> ActivationLevels:
    assert isinstance(binarizer, IenetActivation)
    scales = (1.0, float(binarizer.factor))
    shifts = (binarizer.first, binarizer.second)
    return ActivationLevels([SignBase(x, -to_array(b), s) for b, s in zip(shifts, scales, strict=True)], 0.0)


def _export_adabin(builder: GraphBuilder, name: str, binarizer: ActivationBinarizer, x: Value) -> ActivationLevels:
    assert isinstance(binarizer, AdabinActivation)
    scale, center = to_array(binarizer.scale), to_array(binarizer.center)
    if scale == 0:
        raise_export_error(name, "the learned scale of its activations is 0")
    # A negative scale gives +1 for x <= center. The same levels are |scale| times the sign of x > center.
    threshold = center if scale > 0 else np.nextafter(center, np.float32(np.inf))
    return ActivationLevels([SignBase(x, _repeat(threshold, x), abs(float(scale)))], float(scale * center))


def _export_steps(builder: GraphBuilder, name: str, binarizer: ActivationBinarizer, x: Value) -> ActivationLevels:
    """Return a rising step function as one sign per step, each with half of the height of the step."""
    if binarizer.bits > MAX_SIGNS.bit_length():
        raise_export_error(
            name,
            f"its activations have {binarizer.bits} bits, which would need {2**binarizer.bits - 1} binary products; "
            f"at most {MAX_SIGNS.bit_length()} bits can be exported",
        )
    levels, thresholds = find_steps(binarizer)
    heights = np.diff(levels)
    bases = [SignBase(x, _repeat(t, x), float(h) / 2) for t, h in zip(thresholds, heights, strict=True)]
    return ActivationLevels(bases, float(levels[0] + levels[-1]) / 2)


def find_steps(binarizer: ActivationBinarizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels of a rising step function, and the smallest float32 of each level except the first.

    The binarizer itself is evaluated, so ties and rounding are those of PyTorch. The thresholds are found by bisection
    over the bit patterns of positive float32 numbers, whose order is that of the numbers. All steps of the supported
    methods are at positive numbers.
    """

    def evaluate(x: np.ndarray) -> np.ndarray:
        return to_array(binarizer(torch.from_numpy(x)).dequantize())

    samples = np.concatenate([[np.float32(-1)], np.linspace(0, 4, 4001, dtype=np.float32)])
    levels = np.unique(evaluate(samples))
    low = np.zeros(len(levels) - 1, np.int64)
    high = np.full(len(levels) - 1, np.float32(4).view(np.int32), np.int64)
    for _ in range(32):
        middle = (low + high) // 2
        is_reached = evaluate(middle.astype(np.int32).view(np.float32)) >= levels[1:]
        low, high = np.where(is_reached, low, middle), np.where(is_reached, middle, high)
    return levels.astype(np.float64), high.astype(np.int32).view(np.float32)


def _export_horq(builder: GraphBuilder, name: str, binarizer: ActivationBinarizer, x: Value) -> ActivationLevels:
    """Add the nodes that compute each residual and its scale, the mean of |residual| over the image."""
    assert isinstance(binarizer, HorqActivation)
    channels, bases, residual = x.shape[2], [], x
    zeros, ones = np.zeros(channels, np.float32), np.ones(channels)
    for i in range(binarizer.bits):
        step = f"{name}.residual{i}"
        signs = export_signs(builder, f"{step}.signs", residual)
        magnitudes = builder.add_node("multiply", f"{step}.magnitudes", [residual, signs])
        means = builder.add_node("mean", f"{step}.mean", magnitudes, (1, 1, channels))
        mean_weight = np.full((1, 1, 1, channels), 1 / channels)
        window = SlidingWindow((1, 1)).to_attributes()
        scale = builder.add_node("conv", f"{step}.scale", means, (1, 1, 1), weight=mean_weight, **window)
        bases.append(SignBase(residual, zeros, scale))
        if i + 1 < binarizer.bits:
            product = builder.add_node("multiply", f"{step}.product", [signs, scale])
            negative = builder.add_node("affine", f"{step}.negative", product, a=-ones, b=0 * ones)
            residual = builder.add_node("add", f"{step}.rest", [residual, negative])
    return ActivationLevels(bases, 0.0)


def export_signs(builder: GraphBuilder, name: str, x: Value) -> Value:
    """Add a node that returns the signs of x as numbers: a binary convolution that multiplies each channel by 1."""
    channels = x.shape[2]
    window = SlidingWindow((1, 1), groups=channels).to_attributes()
    signs = builder.add_node(
        "bconv",
        name,
        x,
        weight=PackedSigns(pack_signs(np.ones((channels, 1), np.float32)), 1),
        threshold=np.zeros(channels, np.float32),
        pad_sign=0,
        a=np.ones(channels),
        b=np.zeros(channels),
        **window,
    )
    signs.node.torch_functions.append(lambda sums: sums)
    signs.node.torch_sign = lambda y: torch.where(y < 0, -1.0, 1.0)
    return signs


def _repeat(threshold: np.ndarray | np.floating, x: Value) -> np.ndarray:
    return np.full(x.shape[2], threshold, np.float32)


# Dictionary: type of activation binarizer -> function that returns the levels. Other types are in SIGN_RULES.
ACTIVATION_LEVELS: dict[type, LevelRule] = {
    AbcActivation: _export_abcnet,
    IenetActivation: _export_ienet,
    AdabinActivation: _export_adabin,
    DorefaActivation: _export_steps,
    HwgqActivation: _export_steps,
    HorqActivation: _export_horq,
}
