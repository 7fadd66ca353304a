"""METHODS contains all binarization methods. To add a method, write its binarizer classes and add a row here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lcrbnn.errors import InputError, lookup
from lcrbnn.nn.methods.abcnet import AbcActivation, AbcWeight
from lcrbnn.nn.methods.adabin import AdabinActivation, AdabinWeight
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.biper import BiperActivation, BiperWeight
from lcrbnn.nn.methods.bireal import BirealActivation, BirealWeight
from lcrbnn.nn.methods.bnn import BnnActivation, BnnWeight
from lcrbnn.nn.methods.bnnplus import BnnPlusActivation, BnnPlusWeight
from lcrbnn.nn.methods.bwnh import BwnhWeight
from lcrbnn.nn.methods.dorefa import DorefaActivation, DorefaWeight
from lcrbnn.nn.methods.dsq import DsqActivation, DsqWeight
from lcrbnn.nn.methods.horq import HorqActivation, HorqWeight
from lcrbnn.nn.methods.hwgq import HwgqActivation, HwgqWeight
from lcrbnn.nn.methods.ienet import IenetActivation, IenetWeight
from lcrbnn.nn.methods.irnet import IrnetActivation, IrnetWeight
from lcrbnn.nn.methods.lns import LnsActivation, LnsWeight
from lcrbnn.nn.methods.proxybnn import ProxyActivation, ProxyWeight
from lcrbnn.nn.methods.rad import RadActivation, RadWeight
from lcrbnn.nn.methods.rbnn import RbnnActivation, RbnnWeight
from lcrbnn.nn.methods.reactnet import ReactActivation, ReactWeight
from lcrbnn.nn.methods.recu import RecuActivation, RecuWeight
from lcrbnn.nn.methods.reste import ResteActivation, ResteWeight
from lcrbnn.nn.methods.siman import SimanActivation, SimanWeight
from lcrbnn.nn.methods.slb import GROWTH_WEIGHTS_ONLY, SlbActivation, SlbWeight
from lcrbnn.nn.methods.sq import SqBwnWeight, SqTwnWeight
from lcrbnn.nn.methods.xnor import XnorActivation, XnorWeight
from lcrbnn.nn.methods.xnorpp import XnorPlusActivation, XnorPlusWeight

_ROWS = [
    Method(
        "bnn",
        "Hubara et al., NeurIPS 2016",
        "signs without a scale, straight-through gradient",
        BnnWeight,
        BnnActivation,
    ),
    Method("xnor", "Rastegari et al., ECCV 2016", "centered weights, a scale per filter", XnorWeight, XnorActivation),
    Method(
        "bwn",
        "Rastegari et al., ECCV 2016",
        "the weights of xnor, real activations",
        XnorWeight,
        XnorActivation,
        supported_activation_bits=(32,),
        equivalence_note="the weights-only network of the XNOR-Net paper has the weights of xnor by definition",
    ),
    Method(
        "xnor++",
        "Bulat & Tzimiropoulos, BMVC 2019",
        "a learned scale per channel, row and column",
        XnorPlusWeight,
        XnorPlusActivation,
    ),
    Method(
        "dorefa",
        "Zhou et al., 2016",
        "a scale per layer, activations of 1 to 8 bits on [0, 1]",
        DorefaWeight,
        DorefaActivation,
        supported_activation_bits=(1, 2, 3, 4, 5, 6, 7, 8, 32),
    ),
    Method(
        "bireal", "Liu et al., ECCV 2018", "ApproxSign gradient, a scale per filter", BirealWeight, BirealActivation
    ),
    Method(
        "irnet",
        "Qin et al., CVPR 2020",
        "standardized weights, a gradient that sharpens during training",
        IrnetWeight,
        IrnetActivation,
        real_activation_defaults={"t_min": 1e-1},
    ),
    Method(
        "rbnn",
        "Lin et al., NeurIPS 2020",
        "rotated weights, learned scale",
        RbnnWeight,
        RbnnActivation,
        standardizes_real_inputs=True,
    ),
    Method(
        "reactnet",
        "Liu et al., ECCV 2020",
        "a learned shift before the sign",
        ReactWeight,
        ReactActivation,
        supports_real_weights=True,
        equivalence_note="its weights are those of bireal, as in both released codes; its activations differ once a "
        "shift is not 0",
    ),
    Method("abc-net", "Lin et al., NeurIPS 2017", "M weight bases and N activation bases", AbcWeight, AbcActivation),
    Method(
        "bnn+",
        "Darabi et al., 2018",
        "SwishSign gradient, a regularizer that moves |w| to one level",
        BnnPlusWeight,
        BnnPlusActivation,
    ),
    Method("proxybnn", "He et al., ECCV 2020", "latent weights in a learned basis", ProxyWeight, ProxyActivation),
    Method("dsq", "Gong et al., ICCV 2019", "a learned tanh that approaches the sign", DsqWeight, DsqActivation),
    Method("lns", "Han et al., ICML 2020", "weights from a small mapping network", LnsWeight, LnsActivation),
    Method(
        "slb",
        "Yang et al., NeurIPS 2020",
        "a softmax over both levels that becomes sharper during training",
        SlbWeight,
        SlbActivation,
        real_activation_defaults={"growth": GROWTH_WEIGHTS_ONLY},
    ),
    Method(
        "rad",
        "Ding et al., CVPR 2019",
        "bnn plus a loss on the distribution of activations",
        RadWeight,
        RadActivation,
        equivalence_note="forward pass and gradient are those of bnn; rad adds only a loss",
    ),
    Method(
        "hwgq",
        "Cai et al., CVPR 2017",
        "2-bit activations for a half-wave Gaussian",
        HwgqWeight,
        HwgqActivation,
        supported_activation_bits=(2, 32),
    ),
    Method(
        "horq",
        "Li et al., ICCV 2017",
        "further signs approximate the residual of the previous ones",
        HorqWeight,
        HorqActivation,
        supported_activation_bits=(2, 1, 3, 4, 32),
        equivalence_note="its weights are those of hwgq, both taken from the XNOR-Net paper; its activations differ",
    ),
    Method(
        "sq-bwn",
        "Dong et al., BMVC 2017",
        "a random part of the filters is binary, drawn again at each step",
        SqBwnWeight,
        XnorActivation,
        supported_activation_bits=(32,),
        equivalence_note="once all filters are quantized, its weights are those of hwgq; the training before differs",
    ),
    Method(
        "sq-twn",
        "Dong et al., BMVC 2017",
        "a random part of the filters is ternary, drawn again at each step",
        SqTwnWeight,
        XnorActivation,
        supported_activation_bits=(32,),
    ),
    Method(
        "bwnh",
        "Hu et al., AAAI 2018",
        "real weights, then hashed, then binary",
        BwnhWeight,
        XnorActivation,
        supported_activation_bits=(32,),
        equivalence_note="once hashed, its weights are those of hwgq; the values they start from differ",
    ),
    Method(
        "recu",
        "Xu et al., ICCV 2021",
        "weights in the tails of the distribution are clamped",
        RecuWeight,
        RecuActivation,
        supports_real_weights=True,
    ),
    Method("siman", "Lin et al., TPAMI 2022", "signs of the magnitudes of weights", SimanWeight, SimanActivation),
    Method(
        "adabin",
        "Tu et al., ECCV 2022",
        "two adaptive levels that are not symmetric around 0",
        AdabinWeight,
        AdabinActivation,
    ),
    Method("reste", "Wu et al., ICCV 2023", "the gradient of a power function", ResteWeight, ResteActivation),
    Method("biper", "Vargas et al., CVPR 2024", "signs of sines of weights", BiperWeight, BiperActivation),
    Method("ie-net", "Ding et al., 2022", "two shifted signs per activation", IenetWeight, IenetActivation),
]

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def get_method(name: str | Method, bits: str | None = None, **options: Any) -> Method:
    """Return the method with this name, bits ("1/1", "1/32", for dorefa also "1/2") and options.

    "irnet/recu" combines the weights of the first method with the activations of the second.

    >>> get_method("irnet", "1/32").activation_bits
    32
    """
    method = name if isinstance(name, Method) else _find_method(name)
    if not isinstance(bits, str | None):
        raise InputError(f'bits must have the form "weights/activations", such as "1/1" or "1/32"; got {bits!r}')
    return method.configure(bits, **options)


def _find_method(name: str) -> Method:
    names = str(name).split("/")
    if len(names) != 2:
        return lookup(METHODS, name, "binarization method", "lcrbnn methods")
    weights, activations = (lookup(METHODS, part, "binarization method", "lcrbnn methods") for part in names)
    if activations.supported_activation_bits == (32,):
        raise InputError(f"{activations.name} has real activations, so it cannot follow the slash in {name}")
    return replace(
        weights,
        name=name,
        paper=f"{weights.paper}; {activations.paper}",
        summary=f"the weights of {weights.name}, the activations of {activations.name}",
        activation_class=activations.activation_class,
        supported_activation_bits=activations.supported_activation_bits,
        supports_real_weights=activations.supports_real_weights,
        standardizes_real_inputs=activations.standardizes_real_inputs,
        equivalence_note="",
    )
