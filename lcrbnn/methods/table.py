"""METHODS: every binarisation method of the package, a row each. A new method is a class or two and a row here."""

from __future__ import annotations

from typing import Any

from lcrbnn.errors import InputError, choose
from lcrbnn.methods.bireal import BirealActivation, BirealWeight
from lcrbnn.methods.bnn import BnnActivation, BnnWeight
from lcrbnn.methods.contract import Method
from lcrbnn.methods.dorefa import DorefaActivation, DorefaWeight
from lcrbnn.methods.irnet import IrnetActivation, IrnetWeight
from lcrbnn.methods.rbnn import RbnnActivation, RbnnWeight
from lcrbnn.methods.reactnet import ReactActivation, ReactWeight
from lcrbnn.methods.xnor import XnorActivation, XnorWeight
from lcrbnn.methods.xnorpp import XnorPlusActivation, XnorPlusWeight

_ROWS = [
    Method("bnn", "Hubara et al., NeurIPS 2016", "signs without a scale, straight-through", BnnWeight, BnnActivation),
    Method("xnor", "Rastegari et al., ECCV 2016", "centred weights, a scale a filter", XnorWeight, XnorActivation),
    Method(
        "bwn",
        "Rastegari et al., ECCV 2016",
        "xnor's weights, real activations",
        XnorWeight,
        XnorActivation,
        activation_bits=(32,),
        alike="the weights-only network of the XNOR-Net paper: its weights are xnor's by definition",
    ),
    Method(
        "xnor++",
        "Bulat & Tzimiropoulos, BMVC 2019",
        "a learned scale a channel, row and column",
        XnorPlusWeight,
        XnorPlusActivation,
    ),
    Method(
        "dorefa",
        "Zhou et al., 2016",
        "a scale a layer, activations of 1 to 8 bits on [0, 1]",
        DorefaWeight,
        DorefaActivation,
        activation_bits=(1, 2, 3, 4, 5, 6, 7, 8, 32),
    ),
    Method("bireal", "Liu et al., ECCV 2018", "ApproxSign gradient, a scale a filter", BirealWeight, BirealActivation),
    Method(
        "irnet",
        "Qin et al., CVPR 2020",
        "standardised weights, sharpening gradient",
        IrnetWeight,
        IrnetActivation,
        weights_only={"t_min": 1e-1},
    ),
    Method("rbnn", "Lin et al., NeurIPS 2020", "rotated weights, learned scale", RbnnWeight, RbnnActivation),
    Method(
        "reactnet",
        "Liu et al., ECCV 2020",
        "a learned shift before the sign",
        ReactWeight,
        ReactActivation,
        two_steps=True,
        alike="its weights are bireal's, as in both released codes; the activations differ once a shift leaves 0",
    ),
]

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def method(name: str | Method, bits: str | None = None, **options: Any) -> Method:
    """Look up a method and choose its bits ("1/1", "1/32", for dorefa also "1/2") and options.

    >>> method("irnet", "1/32").chosen_bits
    32
    """
    row = name if isinstance(name, Method) else choose(METHODS, name, "binarisation method")
    if not isinstance(bits, str | None):
        raise InputError(f'bits are written "weights/activations", as in "1/1" or "1/32"; got {bits!r}')
    return row.configure(bits, **options)
