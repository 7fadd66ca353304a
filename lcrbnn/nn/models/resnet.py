"""Build residual networks from a configuration of depths, widths, block, activation, shortcut, stem and head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.models.blocks import ACTIVATIONS, BLOCKS
from lcrbnn.nn.models.network import Network, make_convolution


@dataclass(frozen=True)
class ResNetConfig:
    """The structure of a residual network. The text fields are keys of the tables that the comments name."""

    depths: tuple[int, ...]  # number of blocks per stage
    widths: tuple[int, ...]  # number of channels per stage
    block: str  # name of the block, a key of BLOCKS
    activation: str  # name of the activation, a key of ACTIVATIONS
    shortcut: str  # name of the shortcut, a key of SHORTCUTS
    stem: str  # name of the stem, a key of STEMS
    head: str  # name of the head, a key of HEADS
    # if True, kaiming_normal_ (fan_in) initializes convolutions and classifier; if False, PyTorch's default
    # initialization
    use_kaiming_init: bool


def _make_conv3_stem(cin: int, cout: int) -> list[nn.Module]:
    return [make_convolution(cin, cout, 3, 1, None), nn.BatchNorm2d(cout)]


def _make_conv7_stem(cin: int, cout: int) -> list[nn.Module]:
    return [nn.Conv2d(cin, cout, 7, 2, 3, bias=False), nn.BatchNorm2d(cout)]


STEMS: dict[str, Callable[[int, int, str], list[nn.Module]]] = {
    "conv3": lambda cin, cout, act: _make_conv3_stem(cin, cout),
    "conv3-act": lambda cin, cout, act: [*_make_conv3_stem(cin, cout), ACTIVATIONS[act](cout)],
    "conv3-relu": lambda cin, cout, act: [
        *_make_conv3_stem(cin, cout),
        nn.ReLU(),
    ],  # SiMaN's stem has a ReLU, although SiMaN's blocks have a PReLU
    "conv7-pool": lambda cin, cout, act: [*_make_conv7_stem(cin, cout), nn.MaxPool2d(3, 2, 1)],
    "conv7-act-pool": lambda cin, cout, act: [
        *_make_conv7_stem(cin, cout),
        ACTIVATIONS[act](cout),
        nn.MaxPool2d(3, 2, 1),
    ],
    # Stem for 64x64 images. It pools with stride 1, so the stages have feature maps of 32, 16, 8 and 4 pixels.
    "conv7-pool-1": lambda cin, cout, act: [*_make_conv7_stem(cin, cout), nn.MaxPool2d(3, 1, 1)],
    "conv7-act-pool-1": lambda cin, cout, act: [
        *_make_conv7_stem(cin, cout),
        ACTIVATIONS[act](cout),
        nn.MaxPool2d(3, 1, 1),
    ],
}

HEADS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": nn.Linear,  # linear classifier as in Bi-Real and ReActNet
    # classifier as in IR-Net, RBNN and LCR
    "norm": lambda cin, classes: nn.Sequential(nn.BatchNorm1d(cin), nn.Linear(cin, classes)),
    "norm-relu": lambda cin, classes: nn.Sequential(nn.BatchNorm1d(cin), nn.ReLU(), nn.Linear(cin, classes)),
}


def build_resnet(config: ResNetConfig, method: Method | None, num_classes: int, in_channels: int) -> Network:
    """Return a newly initialized network with this configuration."""
    # In some networks, the sign is the only nonlinear function. A method with real activations takes no signs of
    # activations, so such a network then gets a ReLU, as in Bi-Real's code.
    has_binary_activations = method is not None and method.activation_bits < 32
    activation = "relu" if config.activation == "none" and not has_binary_activations else config.activation
    stages, cin = [], config.widths[0]
    for i, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
        blocks = []
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            blocks.append(BLOCKS[config.block](cin, width, stride, method, activation, config.shortcut))
            cin = width
        stages.append(nn.Sequential(*blocks))
    stem = nn.Sequential(*STEMS[config.stem](in_channels, config.widths[0], activation))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = Network(stem, stages, pool, HEADS[config.head](cin, num_classes))
    if config.use_kaiming_init:
        _initialize_kaiming(net)
    return net


def _initialize_kaiming(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, BinaryLayer):
            module.initialize_weight()
