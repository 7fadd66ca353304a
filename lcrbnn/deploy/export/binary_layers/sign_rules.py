"""SIGN_RULES has one row per method, with the thresholds at which the method takes the sign of an activation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from lcrbnn.nn.methods.abcnet import AbcActivation
from lcrbnn.nn.methods.biper import BiperActivation
from lcrbnn.nn.methods.bireal import BirealActivation
from lcrbnn.nn.methods.bnn import BnnActivation
from lcrbnn.nn.methods.bnnplus import BnnPlusActivation
from lcrbnn.nn.methods.dorefa import DorefaActivation
from lcrbnn.nn.methods.dsq import DsqActivation
from lcrbnn.nn.methods.irnet import IrnetActivation
from lcrbnn.nn.methods.lns import LnsActivation
from lcrbnn.nn.methods.proxybnn import ProxyActivation
from lcrbnn.nn.methods.rad import RadActivation
from lcrbnn.nn.methods.rbnn import RbnnActivation
from lcrbnn.nn.methods.reactnet import ReactActivation
from lcrbnn.nn.methods.recu import RecuActivation
from lcrbnn.nn.methods.reste import ResteActivation
from lcrbnn.nn.methods.siman import SimanActivation
from lcrbnn.nn.methods.slb import SlbActivation
from lcrbnn.nn.methods.xnor import XnorActivation
from lcrbnn.nn.methods.xnorpp import XnorPlusActivation

Threshold = np.ndarray | str  # thresholds in float32, one per channel, or the word "mean"

DOREFA_THRESHOLD = np.nextafter(
    np.float32(0.5), np.float32(0)
)  # the smallest x for which x + 0.5 rounds to 1 in float32 (ties round to even)


def to_array(x: Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    return x.detach().numpy().copy()


def _zero_threshold(binarizer: object, channels: int) -> Threshold:
    return np.zeros(channels, np.float32)


def _reactnet_threshold(binarizer: object, channels: int) -> Threshold:
    assert isinstance(binarizer, ReactActivation)
    # This threshold is exact, because the float32 sum x + shift has the sign of the exact sum
    return -to_array(binarizer.shift)


def _optional_shift_threshold(binarizer: object, channels: int) -> Threshold:
    assert isinstance(binarizer, RecuActivation)  # the scale of ReCU is positive and used only for training
    return np.zeros(channels, np.float32) if binarizer.shift is None else -to_array(binarizer.shift)


def _abcnet_threshold(binarizer: object, channels: int) -> Threshold:
    assert isinstance(binarizer, AbcActivation)
    return np.full(
        channels, -to_array(binarizer.shift - 0.5)[0], np.float32
    )  # the subtraction has the same order as in AbcActivation


def _mean_threshold(binarizer: object, channels: int) -> Threshold:
    return "mean"


def _dorefa_threshold(binarizer: object, channels: int) -> Threshold:
    return np.full(channels, DOREFA_THRESHOLD, np.float32)


# Dictionary: type of activation binarizer -> function (binarizer, number of channels) that returns the thresholds.
SIGN_RULES: dict[type, Callable[[object, int], Threshold]] = {
    BnnActivation: _zero_threshold,
    XnorActivation: _zero_threshold,
    XnorPlusActivation: _zero_threshold,
    BirealActivation: _zero_threshold,
    IrnetActivation: _zero_threshold,
    BnnPlusActivation: _zero_threshold,
    ProxyActivation: _zero_threshold,
    DsqActivation: _zero_threshold,
    LnsActivation: _zero_threshold,
    SlbActivation: _zero_threshold,
    RadActivation: _zero_threshold,
    RecuActivation: _optional_shift_threshold,
    BiperActivation: _optional_shift_threshold,
    ResteActivation: _zero_threshold,
    AbcActivation: _abcnet_threshold,  # this rule is for one base; more bases are rejected
    ReactActivation: _reactnet_threshold,
    RbnnActivation: _mean_threshold,
    SimanActivation: _mean_threshold,
    DorefaActivation: _dorefa_threshold,  # this rule is for one bit; more bits are rejected
}
