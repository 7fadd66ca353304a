"""MODELS: every network of the package, a row each. Block, activation and shortcut are part of a network's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lcrbnn.errors import InputError, choose, number
from lcrbnn.layers import binary_layers, fit
from lcrbnn.methods import Method
from lcrbnn.methods import method as find_method
from lcrbnn.models.mobile import build_react_a
from lcrbnn.models.resnet import ResNetPlan, build_resnet
from lcrbnn.models.skeleton import Network
from lcrbnn.models.vgg import build_vgg_small


@dataclass(frozen=True)
class Model:
    """A row of MODELS: what it is, the images it was made for, and how to build it."""

    name: str
    summary: str
    image: int
    classes: int
    build: Callable[[Method | None, int, int, int], Network]  # method, classes, channels of an image, its side


def _resnet(plan: ResNetPlan) -> Callable[[Method | None, int, int, int], Network]:
    return lambda method, classes, in_channels, image: build_resnet(plan, method, classes, in_channels)


_THIN = ResNetPlan((3, 3, 3), (16, 32, 64), "plain", "hardtanh", "subsample", "conv3-act", head="norm", kaiming=True)
_WIDE = ResNetPlan((2, 2, 2, 2), (64, 128, 256, 512), "plain", "hardtanh", "conv", "conv3", head="norm", kaiming=False)
_BIG = replace(_WIDE, stem="conv7-act-pool", kaiming=True)
_ONE = replace(
    _WIDE, depths=(4, 4, 4, 4), block="single", activation="none", shortcut="pool-conv", head="linear"
)  # Bi-Real and ReActNet: 16 blocks of one convolution
_REACT = replace(_ONE, activation="rprelu")
_34 = (3, 4, 6, 3)

_cifar = partial(Model, image=32, classes=10)
_imagenet = partial(Model, image=224, classes=1000)
_tiny = partial(Model, image=64, classes=200)

_ROWS = [
    Model(
        "resnet8-double",
        "the 6n+2 network with n = 1, for 8x8 digits",
        8,
        10,
        _resnet(replace(_THIN, depths=(1, 1, 1), block="double")),
    ),
    _cifar("resnet20", "6n+2, n = 3, hardtanh, subsampling shortcut", build=_resnet(_THIN)),
    _cifar(
        "resnet20-double", "resnet20 with a skip around each convolution", build=_resnet(replace(_THIN, block="double"))
    ),
    _cifar(
        "resnet20-relu",
        "resnet20 with ReLU, a bare stem and ReLU before the classifier, as IR-Net's 1/32",
        build=_resnet(replace(_THIN, activation="relu", stem="conv3", head="norm-relu")),
    ),
    _cifar("resnet18", "four stages, hardtanh, real 1x1 shortcut (IR-Net)", build=_resnet(_WIDE)),
    _cifar(
        "resnet18-double", "resnet18 with a skip around each convolution", build=_resnet(replace(_WIDE, block="double"))
    ),
    _cifar(
        "resnet18-binary-shortcut",
        "resnet18 with a binary 1x1 shortcut (RBNN)",
        build=_resnet(replace(_WIDE, shortcut="binary-conv")),
    ),
    _cifar(
        "resnet18-pool-shortcut",
        "resnet18, average pool + zero channels (ReCU)",
        build=_resnet(replace(_WIDE, shortcut="pool", kaiming=True)),
    ),
    _cifar(
        "resnet18-relu",
        "resnet18 with ReLU, for full precision and 1/32",
        build=_resnet(replace(_WIDE, activation="relu", stem="conv3-act")),
    ),
    _cifar("resnet34", "resnet18's longer sibling", build=_resnet(replace(_WIDE, depths=_34))),
    _cifar(
        "resnet34-double",
        "resnet34 with a skip around each convolution",
        build=_resnet(replace(_WIDE, depths=_34, block="double")),
    ),
    _cifar(
        "resnet20-double-prelu",
        "resnet20-double with PReLU in the blocks and ReLU in the stem (SiMaN)",
        build=_resnet(replace(_THIN, block="double", activation="prelu", stem="conv3-relu")),
    ),
    _cifar(
        "resnet20-double-maxout",
        "resnet20-double with two slopes a channel (AdaBin)",
        build=_resnet(replace(_THIN, block="double", activation="maxout")),
    ),
    _cifar(
        "resnet20-double-rprelu",
        "resnet20-double with a PReLU between learned shifts (ReActNet)",
        build=_resnet(replace(_THIN, block="double", activation="rprelu")),
    ),
    _cifar(
        "resnet20-double-pool",
        "resnet20-double, average pool + zero channels (ReCU, BiPer, IE-Net)",
        build=_resnet(replace(_THIN, block="double", shortcut="pool")),
    ),
    _cifar(
        "resnet20-double-pool-rprelu",
        "resnet20-double-pool with a PReLU between learned shifts (ReActNet)",
        build=_resnet(replace(_THIN, block="double", shortcut="pool", activation="rprelu")),
    ),
    _cifar(
        "resnet20-double-bare",
        "resnet20-double with no activation but the sign, which sees what a batch norm and a skip add up to (RAD)",
        build=_resnet(replace(_THIN, block="double", activation="none")),
    ),
    _cifar(
        "resnet18-bare",
        "resnet18 with no activation but the sign (RAD)",
        build=_resnet(replace(_WIDE, activation="none")),
    ),
    _cifar(
        "resnet18-double-prelu",
        "resnet18-double with PReLU",
        build=_resnet(replace(_WIDE, block="double", activation="prelu")),
    ),
    _cifar(
        "resnet18-double-maxout",
        "resnet18-double with two slopes a channel (AdaBin)",
        build=_resnet(replace(_WIDE, block="double", activation="maxout")),
    ),
    _cifar(
        "resnet18-double-rprelu",
        "resnet18-double with a PReLU between learned shifts (ReActNet)",
        build=_resnet(replace(_WIDE, block="double", activation="rprelu")),
    ),
    _cifar("vgg-small", "five binary convolutions, pool before batch norm", build=build_vgg_small),
    _cifar("react18", "ReActNet-style ResNet-18: 16 one-convolution blocks, RPReLU", build=_resnet(_REACT)),
    _imagenet("resnet18-imagenet", "resnet18 with a 7x7 stem", build=_resnet(_BIG)),
    _imagenet(
        "resnet18-double-imagenet",
        "the ImageNet network of IR-Net, RBNN and LCR",
        build=_resnet(replace(_BIG, block="double")),
    ),
    _imagenet(
        "resnet18-binary-shortcut-imagenet",
        "resnet18-imagenet with a binary 1x1 shortcut",
        build=_resnet(replace(_BIG, shortcut="binary-conv")),
    ),
    _imagenet(
        "resnet18-relu-imagenet",
        "resnet18-imagenet with ReLU, for full precision and 1/32",
        build=_resnet(replace(_BIG, activation="relu")),
    ),
    _imagenet("resnet34-imagenet", "resnet34 with a 7x7 stem", build=_resnet(replace(_BIG, depths=_34))),
    _imagenet(
        "resnet34-double-imagenet",
        "resnet34-imagenet, a skip around each convolution",
        build=_resnet(replace(_BIG, depths=_34, block="double")),
    ),
    _imagenet(
        "resnet34-relu-imagenet",
        "the usual ResNet-34: ReLU, no batch norm before the classifier; full precision, a teacher",
        build=_resnet(replace(_BIG, depths=_34, activation="relu", head="linear")),
    ),
    _imagenet(
        "bireal18-imagenet",
        "Bi-Real net: 16 blocks, no activation but the sign (ReLU where activations are real)",
        build=_resnet(replace(_ONE, stem="conv7-pool")),
    ),
    _imagenet(
        "bireal34-imagenet",
        "Bi-Real net with 32 blocks",
        build=_resnet(replace(_ONE, depths=(6, 8, 12, 6), stem="conv7-pool")),
    ),
    _imagenet("react18-imagenet", "ReActNet's ResNet-18", build=_resnet(replace(_REACT, stem="conv7-pool"))),
    _imagenet("react-a-imagenet", "ReActNet-A: MobileNet's plan, 13 blocks of two convolutions", build=build_react_a),
    _tiny(
        "resnet18-double-tiny",
        "resnet18-double-imagenet for 64 pixels: its pool has stride 1",
        build=_resnet(replace(_BIG, block="double", stem="conv7-act-pool-1")),
    ),
    _tiny(
        "resnet18-relu-tiny",
        "resnet18-relu-imagenet for 64 pixels, likewise",
        build=_resnet(replace(_BIG, activation="relu", stem="conv7-act-pool-1")),
    ),
    _tiny(
        "react18-tiny", "react18-imagenet for 64 pixels, likewise", build=_resnet(replace(_REACT, stem="conv7-pool-1"))
    ),
]

MODELS: dict[str, Model] = {row.name: row for row in _ROWS}
MAX_CLASSES = 1_000_000
REAL = "real"  # the name of no method: full precision, as the command line calls it


def network(
    name: str,
    method: str | Method | None = None,
    *,
    bits: str | None = None,
    classes: int | None = None,
    in_channels: int = 3,
    image: int | None = None,
    **options: Any,
) -> Network:
    """Build a network of MODELS: binary by `method`, or its full-precision twin for None or "real".

    `classes` (at most MAX_CLASSES) and `image` (the side of an image) are the row's own unless given. `bits` and
    further options go to the method: `network("resnet20-double", "irnet", bits="1/32", t_min=0.1)`.
    """
    row = choose(MODELS, name, "network")
    classes = row.classes if classes is None else classes
    image = row.image if image is None else image
    method = None if method == REAL else method
    if method is None and (bits is not None or options):
        given = [*(["bits"] if bits is not None else []), *options]
        raise InputError(f"without a method there are no bits or options; got {', '.join(given)}")
    number(classes, "classes", low=1, high=MAX_CLASSES, whole=True)
    number(in_channels, "in_channels", low=1, whole=True)
    number(image, "image", low=8, whole=True)
    chosen = None if method is None else find_method(method, bits, **options)
    net = row.build(chosen, classes, in_channels, image)
    if any(layer.weight_binarizer.needs_fit for _, layer in binary_layers(net)):
        fit(net, (1, in_channels, image, image))
    return net
