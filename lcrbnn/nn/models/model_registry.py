"""MODELS contains all networks of the package. A network's name includes its block, activation and shortcut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lcrbnn.errors import InputError, check_number, lookup
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.nn.model_hooks import fit_output_shapes, iter_binary_layers
from lcrbnn.nn.models.network import Network
from lcrbnn.nn.models.reactnet_a import build_reactnet_a
from lcrbnn.nn.models.resnet import ResNetConfig, build_resnet
from lcrbnn.nn.models.vgg import build_vgg_small


@dataclass(frozen=True)
class Model:
    """A row of MODELS: the function that builds a network, its default image size and its default number of classes."""

    name: str
    summary: str
    image_size: int
    num_classes: int
    # Function with the arguments method, num_classes, in_channels and image_size
    build: Callable[[Method | None, int, int, int], Network]


def _resnet_model(
    image_size: int, num_classes: int, name: str, summary: str, base: ResNetConfig, **changes: Any
) -> Model:
    config = replace(base, **changes)
    return Model(
        name,
        summary,
        image_size,
        num_classes,
        lambda method, num_classes, in_channels, image_size: build_resnet(config, method, num_classes, in_channels),
    )


_RESNET20 = ResNetConfig(
    (3, 3, 3), (16, 32, 64), "plain", "hardtanh", "subsample", "conv3-act", head="norm", use_kaiming_init=True
)
_RESNET18_CIFAR = ResNetConfig(
    (2, 2, 2, 2), (64, 128, 256, 512), "plain", "hardtanh", "conv", "conv3", head="norm", use_kaiming_init=False
)
_RESNET18_IMAGENET = replace(_RESNET18_CIFAR, stem="conv7-act-pool", use_kaiming_init=True)
# Bi-Real and ReActNet count each convolution with its skip connection as one block, so these networks have 16 blocks.
_BIREAL18 = replace(
    _RESNET18_CIFAR, depths=(4, 4, 4, 4), block="single", activation="none", shortcut="pool-conv", head="linear"
)
_REACTNET18 = replace(_BIREAL18, activation="rprelu")
_RESNET34_DEPTHS = (3, 4, 6, 3)

_cifar_resnet = partial(_resnet_model, 32, 10)
_imagenet_resnet = partial(_resnet_model, 224, 1000)
_tiny_imagenet_resnet = partial(_resnet_model, 64, 200)

_ROWS = [
    _resnet_model(
        8,
        10,
        "resnet8-double",
        "ResNet with 6n+2 layers, n = 1, for 8x8 digits",
        _RESNET20,
        depths=(1, 1, 1),
        block="double",
    ),
    _cifar_resnet("resnet20", "ResNet with 6n+2 layers, n = 3, hardtanh, subsampling shortcut", _RESNET20),
    _cifar_resnet(
        "resnet20-double",
        "resnet20 with a skip connection around each convolution",
        _RESNET20,
        block="double",
    ),
    _cifar_resnet(
        "resnet20-relu",
        "resnet20 with ReLU, a stem without activation, ReLU before the classifier (IR-Net's 1/32)",
        _RESNET20,
        activation="relu",
        stem="conv3",
        head="norm-relu",
    ),
    _cifar_resnet("resnet18", "four stages, hardtanh, real 1x1 shortcut (IR-Net)", _RESNET18_CIFAR),
    _cifar_resnet(
        "resnet18-double",
        "resnet18 with a skip connection around each convolution",
        _RESNET18_CIFAR,
        block="double",
    ),
    _cifar_resnet(
        "resnet18-binary-shortcut",
        "resnet18 with a binary 1x1 shortcut (RBNN)",
        _RESNET18_CIFAR,
        shortcut="binary-conv",
    ),
    _cifar_resnet(
        "resnet18-pool-shortcut",
        "resnet18, average pool + zero channels (ReCU)",
        _RESNET18_CIFAR,
        shortcut="pool",
        use_kaiming_init=True,
    ),
    _cifar_resnet(
        "resnet18-relu",
        "resnet18 with ReLU, for full precision and 1/32",
        _RESNET18_CIFAR,
        activation="relu",
        stem="conv3-act",
    ),
    _cifar_resnet(
        "resnet34",
        "resnet18 with 34 layers",
        _RESNET18_CIFAR,
        depths=_RESNET34_DEPTHS,
    ),
    _cifar_resnet(
        "resnet34-double",
        "resnet34 with a skip connection around each convolution",
        _RESNET18_CIFAR,
        depths=_RESNET34_DEPTHS,
        block="double",
    ),
    _cifar_resnet(
        "resnet20-double-prelu",
        "resnet20-double with PReLU in the blocks and ReLU in the stem (SiMaN)",
        _RESNET20,
        block="double",
        activation="prelu",
        stem="conv3-relu",
    ),
    _cifar_resnet(
        "resnet20-double-maxout",
        "resnet20-double with two slopes per channel (AdaBin)",
        _RESNET20,
        block="double",
        activation="maxout",
    ),
    _cifar_resnet(
        "resnet20-double-rprelu",
        "resnet20-double with a PReLU between learned shifts (ReActNet)",
        _RESNET20,
        block="double",
        activation="rprelu",
    ),
    _cifar_resnet(
        "resnet20-double-pool",
        "resnet20-double, average pool + zero channels (ReCU, BiPer, IE-Net)",
        _RESNET20,
        block="double",
        shortcut="pool",
    ),
    _cifar_resnet(
        "resnet20-double-pool-rprelu",
        "resnet20-double-pool with a PReLU between learned shifts (ReActNet)",
        _RESNET20,
        block="double",
        shortcut="pool",
        activation="rprelu",
    ),
    _cifar_resnet(
        "resnet20-double-bare",
        "resnet20-double with no activation except the sign, directly after batch norm and skip connection (RAD)",
        _RESNET20,
        block="double",
        activation="none",
    ),
    _cifar_resnet(
        "resnet18-bare",
        "resnet18 with no activation except the sign (RAD)",
        _RESNET18_CIFAR,
        activation="none",
    ),
    _cifar_resnet(
        "resnet18-double-prelu",
        "resnet18-double with PReLU",
        _RESNET18_CIFAR,
        block="double",
        activation="prelu",
    ),
    _cifar_resnet(
        "resnet18-double-maxout",
        "resnet18-double with two slopes per channel (AdaBin)",
        _RESNET18_CIFAR,
        block="double",
        activation="maxout",
    ),
    _cifar_resnet(
        "resnet18-double-rprelu",
        "resnet18-double with a PReLU between learned shifts (ReActNet)",
        _RESNET18_CIFAR,
        block="double",
        activation="rprelu",
    ),
    Model("vgg-small", "five binary convolutions, max pool before batch norm", 32, 10, build_vgg_small),
    _cifar_resnet("react18", "ReActNet-style ResNet-18: 16 one-convolution blocks, RPReLU", _REACTNET18),
    _imagenet_resnet("resnet18-imagenet", "resnet18 with a 7x7 stem", _RESNET18_IMAGENET),
    _imagenet_resnet(
        "resnet18-double-imagenet",
        "the ImageNet network of IR-Net, RBNN and LCR",
        _RESNET18_IMAGENET,
        block="double",
    ),
    _imagenet_resnet(
        "resnet18-binary-shortcut-imagenet",
        "resnet18-imagenet with a binary 1x1 shortcut",
        _RESNET18_IMAGENET,
        shortcut="binary-conv",
    ),
    _imagenet_resnet(
        "resnet18-relu-imagenet",
        "resnet18-imagenet with ReLU, for full precision and 1/32",
        _RESNET18_IMAGENET,
        activation="relu",
    ),
    _imagenet_resnet(
        "resnet34-imagenet",
        "resnet34 with a 7x7 stem",
        _RESNET18_IMAGENET,
        depths=_RESNET34_DEPTHS,
    ),
    _imagenet_resnet(
        "resnet34-double-imagenet",
        "resnet34-imagenet with a skip connection around each convolution",
        _RESNET18_IMAGENET,
        depths=_RESNET34_DEPTHS,
        block="double",
    ),
    _imagenet_resnet(
        "resnet34-relu-imagenet",
        "the standard ResNet-34 (ReLU, no batch norm before the classifier), for full precision and as a teacher",
        _RESNET18_IMAGENET,
        depths=_RESNET34_DEPTHS,
        activation="relu",
        head="linear",
    ),
    _imagenet_resnet(
        "bireal18-imagenet",
        "Bi-Real net: 16 blocks, no activation except the sign (ReLU if activations are real)",
        _BIREAL18,
        stem="conv7-pool",
    ),
    _imagenet_resnet(
        "bireal34-imagenet",
        "Bi-Real net with 32 blocks",
        _BIREAL18,
        depths=(6, 8, 12, 6),
        stem="conv7-pool",
    ),
    _imagenet_resnet("react18-imagenet", "ReActNet's ResNet-18", _REACTNET18, stem="conv7-pool"),
    Model(
        "react-a-imagenet",
        "ReActNet-A: MobileNet structure, 13 blocks of two convolutions",
        224,
        1000,
        build_reactnet_a,
    ),
    _tiny_imagenet_resnet(
        "resnet18-double-tiny",
        "resnet18-double-imagenet for 64x64 images: max pool with stride 1",
        _RESNET18_IMAGENET,
        block="double",
        stem="conv7-act-pool-1",
    ),
    _tiny_imagenet_resnet(
        "resnet18-relu-tiny",
        "resnet18-relu-imagenet for 64x64 images: max pool with stride 1",
        _RESNET18_IMAGENET,
        activation="relu",
        stem="conv7-act-pool-1",
    ),
    _tiny_imagenet_resnet(
        "react18-tiny",
        "react18-imagenet for 64x64 images: max pool with stride 1",
        _REACTNET18,
        stem="conv7-pool-1",
    ),
]

MODELS: dict[str, Model] = {row.name: row for row in _ROWS}
MAX_CLASSES = 1_000_000
FULL_PRECISION = "real"  # the method name that means "no binarization" in settings and on the command line


def create_model(
    name: str,
    method: str | Method | None = None,
    *,
    bits: str | None = None,
    num_classes: int | None = None,
    in_channels: int = 3,
    image_size: int | None = None,
    **options: Any,
) -> Network:
    """Return a new network of MODELS, which is binary, or full precision if `method` is None or "real".

    The defaults of `num_classes` (at most MAX_CLASSES) and `image_size` (side length in pixels) are in the row of the
    model. `bits` and further options are passed to the method: `create_model("resnet20-double", "irnet", bits="1/32",
    t_min=0.1)`.
    """
    row = lookup(MODELS, name, "network", "lcrbnn models")
    num_classes = row.num_classes if num_classes is None else num_classes
    image_size = row.image_size if image_size is None else image_size
    method = None if method == FULL_PRECISION else method
    if method is None and (bits is not None or options):
        unused_options = [*(["bits"] if bits is not None else []), *options]
        raise InputError(f"bits and options require a method; got {', '.join(unused_options)}")
    check_number(num_classes, "num_classes", low=1, high=MAX_CLASSES, integer=True)
    check_number(in_channels, "in_channels", low=1, integer=True)
    check_number(image_size, "image_size", low=8, integer=True)
    configured_method = None if method is None else get_method(method, bits, **options)
    network = row.build(configured_method, num_classes, in_channels, image_size)
    if any(layer.weight_binarizer.needs_output_shape for _, layer in iter_binary_layers(network)):
        fit_output_shapes(network, (1, in_channels, image_size, image_size))
    return network
