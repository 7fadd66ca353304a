"""METHODS: every binarisation method of the package, a row each. A new method is a class or two and a row here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lcrbnn.errors import InputError, choose
from lcrbnn.methods.abcnet import AbcActivation, AbcWeight
from lcrbnn.methods.adabin import AdabinActivation, AdabinWeight
from lcrbnn.methods.biper import BiperActivation, BiperWeight
from lcrbnn.methods.bireal import BirealActivation, BirealWeight
from lcrbnn.methods.bnn import BnnActivation, BnnWeight
from lcrbnn.methods.bnnplus import BnnPlusActivation, BnnPlusWeight
from lcrbnn.methods.bwnh import BwnhWeight
from lcrbnn.methods.contract import Method
from lcrbnn.methods.dorefa import DorefaActivation, DorefaWeight
from lcrbnn.methods.dsq import DsqActivation, DsqWeight
from lcrbnn.methods.horq import HorqActivation, HorqWeight
from lcrbnn.methods.hwgq import HwgqActivation, HwgqWeight
from lcrbnn.methods.ienet import IenetActivation, IenetWeight
from lcrbnn.methods.irnet import IrnetActivation, IrnetWeight
from lcrbnn.methods.lns import LnsActivation, LnsWeight
from lcrbnn.methods.proxybnn import ProxyActivation, ProxyWeight
from lcrbnn.methods.rad import RadActivation, RadWeight
from lcrbnn.methods.rbnn import RbnnActivation, RbnnWeight
from lcrbnn.methods.reactnet import ReactActivation, ReactWeight
from lcrbnn.methods.recu import RecuActivation, RecuWeight
from lcrbnn.methods.reste import ResteActivation, ResteWeight
from lcrbnn.methods.siman import SimanActivation, SimanWeight
from lcrbnn.methods.slb import GROWTH_WEIGHTS_ONLY, SlbActivation, SlbWeight
from lcrbnn.methods.sq import SqBwnWeight, SqTwnWeight
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
    Method(
        "rbnn",
        "Lin et al., NeurIPS 2020",
        "rotated weights, learned scale",
        RbnnWeight,
        RbnnActivation,
        standardizes_real_input=True,
    ),
    Method(
        "reactnet",
        "Liu et al., ECCV 2020",
        "a learned shift before the sign",
        ReactWeight,
        ReactActivation,
        two_steps=True,
        alike="its weights are bireal's, as in both released codes; the activations differ once a shift leaves 0",
    ),
    Method("abc-net", "Lin et al., NeurIPS 2017", "M weight and N activation bases", AbcWeight, AbcActivation),
    Method("bnn+", "Darabi et al., 2018", "SwishSign gradient, |w| drawn to a level", BnnPlusWeight, BnnPlusActivation),
    Method("proxybnn", "He et al., ECCV 2020", "latent weights in a learned basis", ProxyWeight, ProxyActivation),
    Method("dsq", "Gong et al., ICCV 2019", "a learned tanh that grows into the sign", DsqWeight, DsqActivation),
    Method("lns", "Han et al., ICML 2020", "weights from a small mapping network", LnsWeight, LnsActivation),
    Method(
        "slb",
        "Yang et al., NeurIPS 2020",
        "a softmax over both levels that hardens",
        SlbWeight,
        SlbActivation,
        weights_only={"growth": GROWTH_WEIGHTS_ONLY},
    ),
    Method(
        "rad",
        "Ding et al., CVPR 2019",
        "bnn with a loss on the distribution of activations",
        RadWeight,
        RadActivation,
        alike="forward and gradient are bnn's: what it adds is a loss",
    ),
    Method(
        "hwgq",
        "Cai et al., CVPR 2017",
        "activations of 2 bits on a half wave",
        HwgqWeight,
        HwgqActivation,
        activation_bits=(2, 32),
    ),
    Method(
        "horq",
        "Li et al., ICCV 2017",
        "the sign of what the last sign left over",
        HorqWeight,
        HorqActivation,
        activation_bits=(2, 1, 3, 4, 32),
        alike="its weights are hwgq's, both those of XNOR-Net's paper; the activations differ",
    ),
    Method(
        "sq-bwn",
        "Dong et al., BMVC 2017",
        "some filters binary, drawn anew each step",
        SqBwnWeight,
        XnorActivation,
        activation_bits=(32,),
        alike="once all filters are quantised, its weights are hwgq's: what differs is the way there",
    ),
    Method(
        "sq-twn",
        "Dong et al., BMVC 2017",
        "some filters ternary, drawn anew each step",
        SqTwnWeight,
        XnorActivation,
        activation_bits=(32,),
    ),
    Method(
        "bwnh",
        "Hu et al., AAAI 2018",
        "real, then hashed, then binary weights",
        BwnhWeight,
        XnorActivation,
        activation_bits=(32,),
        alike="once hashed, its weights are hwgq's: what differs is where they come from",
    ),
    Method(
        "recu", "Xu et al., ICCV 2021", "tails of the weights brought back", RecuWeight, RecuActivation, two_steps=True
    ),
    Method("siman", "Lin et al., TPAMI 2022", "signs of magnitudes", SimanWeight, SimanActivation),
    Method("adabin", "Tu et al., ECCV 2022", "two levels that adapt, not around 0", AdabinWeight, AdabinActivation),
    Method("reste", "Wu et al., ICCV 2023", "the slope of a power function", ResteWeight, ResteActivation),
    Method("biper", "Vargas et al., CVPR 2024", "signs of sines", BiperWeight, BiperActivation),
    Method("ie-net", "Ding et al., 2022", "two shifted signs an activation", IenetWeight, IenetActivation),
]

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def method(name: str | Method, bits: str | None = None, **options: Any) -> Method:
    """Look up a method and choose its bits ("1/1", "1/32", for dorefa also "1/2") and options.

    "irnet/recu" has the weights of the first and the activations of the second.

    >>> method("irnet", "1/32").chosen_bits
    32
    """
    row = name if isinstance(name, Method) else _row(name)
    if not isinstance(bits, str | None):
        raise InputError(f'bits are written "weights/activations", as in "1/1" or "1/32"; got {bits!r}')
    return row.configure(bits, **options)


def _row(name: str) -> Method:
    halves = str(name).split("/")
    if len(halves) != 2:
        return choose(METHODS, name, "binarisation method")
    weights, activations = (choose(METHODS, half, "binarisation method") for half in halves)
    if activations.activation_bits == (32,):
        raise InputError(f"{activations.name} leaves activations real: it cannot be the second half of {name}")
    return replace(
        weights,
        name=name,
        paper=f"{weights.paper}; {activations.paper}",
        summary=f"the weights of {weights.name}, the activations of {activations.name}",
        activation=activations.activation,
        activation_bits=activations.activation_bits,
        two_steps=activations.two_steps,
        standardizes_real_input=activations.standardizes_real_input,
        alike="",
    )
