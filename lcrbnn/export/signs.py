"""SIGNS: how each method takes the sign of an activation, as thresholds, a row each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from lcrbnn.methods.bireal import BirealActivation
from lcrbnn.methods.bnn import BnnActivation
from lcrbnn.methods.dorefa import DorefaActivation
from lcrbnn.methods.irnet import IrnetActivation
from lcrbnn.methods.rbnn import RbnnActivation
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.methods.xnor import XnorActivation
from lcrbnn.methods.xnorpp import XnorPlusActivation

Threshold = np.ndarray | str  # float32, one a channel, or "mean"

HALF = np.nextafter(
    np.float32(0.5), np.float32(0)
)  # the smallest x whose x + 0.5 is 1 in float32: a tie rounds to even


def numbers(x: Tensor) -> np.ndarray:
    """A tensor as an array of its own."""
    return x.detach().numpy().copy()


def _zero(binarizer: object, channels: int) -> Threshold:
    return np.zeros(channels, np.float32)


def _shifted(binarizer: object, channels: int) -> Threshold:
    assert isinstance(binarizer, ReactActivation)
    return -numbers(binarizer.shift)  # the sign of x + shift in float32 is that of the exact sum


def _mean(binarizer: object, channels: int) -> Threshold:
    return "mean"


def _half(binarizer: object, channels: int) -> Threshold:
    return np.full(channels, HALF, np.float32)


# Kind of binarizer -> its thresholds, from the binarizer and the number of channels.
SIGNS: dict[type, Callable[[object, int], Threshold]] = {
    BnnActivation: _zero,
    XnorActivation: _zero,
    XnorPlusActivation: _zero,
    BirealActivation: _zero,
    IrnetActivation: _zero,
    ReactActivation: _shifted,
    RbnnActivation: _mean,
    DorefaActivation: _half,  # of one bit; more are refused
}
