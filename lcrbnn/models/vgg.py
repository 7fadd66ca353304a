"""VGG-small, the plain network of the CIFAR-10 tables: pooling stands between convolution and batch norm."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from lcrbnn.layers import BinaryLayer
from lcrbnn.methods import Method
from lcrbnn.models.skeleton import Network, convolution

# Stages of (channels out, pool after the convolution).
PLAN = (((128, True),), ((256, False), (256, True)), ((512, False), (512, True)))


def build_vgg_small(method: Method | None, classes: int, in_channels: int, image: int) -> Network:
    """A real first convolution, five binary ones, one real classifier over the flattened last map."""
    stem = nn.Sequential(nn.Conv2d(in_channels, 128, 3, 1, 1, bias=False), nn.BatchNorm2d(128), nn.Hardtanh())
    stages, cin, side = [], 128, image
    for plan in PLAN:
        blocks = []
        for cout, pooled in plan:
            side = side // 2 if pooled else side
            blocks.append(_block(cin, cout, pooled, method))
            cin = cout
        stages.append(nn.Sequential(*blocks))
    head = nn.Linear(cin * side * side, classes)
    net = Network(stem, stages, nn.Flatten(), head)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0, math.sqrt(2 / (9 * module.out_channels)))
        if isinstance(module, BinaryLayer):
            module.initialize()
    nn.init.normal_(head.weight, 0, 0.01)
    nn.init.zeros_(head.bias)
    return net


def _block(cin: int, cout: int, pooled: bool, method: Method | None) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict(conv1=convolution(cin, cout, 3, 1, method))
    if pooled:
        parts["pool"] = nn.MaxPool2d(2)
    parts["bn1"] = nn.BatchNorm2d(cout)
    parts["act1"] = nn.Hardtanh()
    return nn.Sequential(parts)
