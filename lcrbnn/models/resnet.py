"""Residual networks from a plan: depth, width, block, activation, shortcut, stem and head are data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lcrbnn.layers import BinaryLayer
from lcrbnn.methods import Method
from lcrbnn.models.blocks import ACTIVATIONS, BLOCKS
from lcrbnn.models.skeleton import Network, convolution


@dataclass(frozen=True)
class ResNetPlan:
    """Everything that decides a residual network's shape; text fields name rows of the tables beside them."""

    depths: tuple[int, ...]  # blocks a stage
    widths: tuple[int, ...]  # channels a stage
    block: str  # BLOCKS
    activation: str  # ACTIVATIONS
    shortcut: str  # SHORTCUTS
    stem: str  # STEMS
    head: str  # HEADS
    kaiming: bool  # kaiming_normal_ (fan_in) on convolutions and classifier; otherwise PyTorch's own start


def _conv3(cin: int, cout: int) -> list[nn.Module]:
    return [convolution(cin, cout, 3, 1, None), nn.BatchNorm2d(cout)]


def _conv7(cin: int, cout: int) -> list[nn.Module]:
    return [nn.Conv2d(cin, cout, 7, 2, 3, bias=False), nn.BatchNorm2d(cout)]


STEMS: dict[str, Callable[[int, int, str], list[nn.Module]]] = {
    "conv3": lambda cin, cout, act: _conv3(cin, cout),
    "conv3-act": lambda cin, cout, act: [*_conv3(cin, cout), ACTIVATIONS[act](cout)],
    "conv3-relu": lambda cin, cout, act: [*_conv3(cin, cout), nn.ReLU()],  # SiMaN: blocks have PReLU, the stem has not
    "conv7-pool": lambda cin, cout, act: [*_conv7(cin, cout), nn.MaxPool2d(3, 2, 1)],
    "conv7-act-pool": lambda cin, cout, act: [*_conv7(cin, cout), ACTIVATIONS[act](cout), nn.MaxPool2d(3, 2, 1)],
    # For images of 64 pixels: a pool of stride 1 leaves 32, 16, 8 and 4 to the stages.
    "conv7-pool-1": lambda cin, cout, act: [*_conv7(cin, cout), nn.MaxPool2d(3, 1, 1)],
    "conv7-act-pool-1": lambda cin, cout, act: [*_conv7(cin, cout), ACTIVATIONS[act](cout), nn.MaxPool2d(3, 1, 1)],
}

HEADS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": nn.Linear,  # Bi-Real, ReActNet
    "norm": lambda cin, classes: nn.Sequential(nn.BatchNorm1d(cin), nn.Linear(cin, classes)),  # IR-Net, RBNN, LCR
    "norm-relu": lambda cin, classes: nn.Sequential(nn.BatchNorm1d(cin), nn.ReLU(), nn.Linear(cin, classes)),
}


def build_resnet(plan: ResNetPlan, method: Method | None, classes: int, in_channels: int) -> Network:
    """The network of the plan, freshly initialised."""
    # Where the sign is the only activation, a real network needs another: Bi-Real trains its real one with ReLU.
    binary = method is not None and method.chosen_bits < 32
    activation = "relu" if plan.activation == "none" and not binary else plan.activation
    stages, cin = [], plan.widths[0]
    for i, (depth, width) in enumerate(zip(plan.depths, plan.widths, strict=True)):
        blocks = []
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            blocks.append(BLOCKS[plan.block](cin, width, stride, method, activation, plan.shortcut))
            cin = width
        stages.append(nn.Sequential(*blocks))
    stem = nn.Sequential(*STEMS[plan.stem](in_channels, plan.widths[0], activation))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = Network(stem, stages, pool, HEADS[plan.head](cin, classes))
    if plan.kaiming:
        _start_kaiming(net)
    return net


def _start_kaiming(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, BinaryLayer):
            module.initialize()
