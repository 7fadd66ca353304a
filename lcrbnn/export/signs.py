"""SIGNS: how each method takes the sign of an activation, as thresholds, a row each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from lcrbnn.methods.abcnet import AbcActivation
from lcrbnn.methods.biper import BiperActivation
from lcrbnn.methods.bireal import BirealActivation
from lcrbnn.methods.bnn import BnnActivation
from lcrbnn.methods.bnnplus import BnnPlusActivation
from lcrbnn.methods.dorefa import DorefaActivation
from lcrbnn.methods.dsq import DsqActivation
from lcrbnn.methods.irnet import IrnetActivation
from lcrbnn.methods.lns import LnsActivation
from lcrbnn.methods.proxybnn import ProxyActivation
from lcrbnn.methods.rad import RadActivation
from lcrbnn.methods.rbnn import RbnnActivation
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.methods.recu import RecuActivation
from lcrbnn.methods.reste import ResteActivation
from lcrbnn.methods.siman import SimanActivation
from lcrbnn.methods.slb import SlbActivation
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


def _moved(binarizer: object, channels: int) -> Threshold:
    assert isinstance(binarizer, RecuActivation)  # its deviation is for training, and positive
    return np.zeros(channels, np.float32) if binarizer.shift is None else -numbers(binarizer.shift)


def _base(binarizer: object, channels: int) -> Threshold:
    assert isinstance(binarizer, AbcActivation)
    return np.full(channels, -numbers(binarizer.shift - 0.5)[0], np.float32)  # as the sum is formed there


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
    BnnPlusActivation: _zero,
    ProxyActivation: _zero,
    DsqActivation: _zero,
    LnsActivation: _zero,
    SlbActivation: _zero,
    RadActivation: _zero,
    RecuActivation: _moved,
    BiperActivation: _moved,
    ResteActivation: _zero,
    AbcActivation: _base,  # of one base; more are refused
    ReactActivation: _shifted,
    RbnnActivation: _mean,
    SimanActivation: _mean,
    DorefaActivation: _half,  # of one bit; more are refused
}
