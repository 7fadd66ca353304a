"""VGG-small is the network of the CIFAR-10 tables without skip connections. Pooling comes before each batch norm."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.models.network import Network, make_convolution

# (Number of output channels, whether a max pool follows) of each convolution.
STAGES = (((128, True),), ((256, False), (256, True)), ((512, False), (512, True)))


def build_vgg_small(method: Method | None, num_classes: int, in_channels: int, image_size: int) -> Network:
    """Return a network with a real first convolution, five binary ones and a real classifier.

    The classifier takes the flattened output of the last stage.
    """
    stem = nn.Sequential(nn.Conv2d(in_channels, 128, 3, 1, 1, bias=False), nn.BatchNorm2d(128), nn.Hardtanh())
    stages, cin, side = [], 128, image_size
    for stage_layers in STAGES:
        blocks = []
        for cout, has_pool in stage_layers:
            side = side // 2 if has_pool else side
            blocks.append(_make_block(cin, cout, has_pool, method))
            cin = cout
        stages.append(nn.Sequential(*blocks))
    head = nn.Linear(cin * side * side, num_classes)
    net = Network(stem, stages, nn.Flatten(), head)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0, math.sqrt(2 / (9 * module.out_channels)))
        if isinstance(module, BinaryLayer):
            module.initialize_weight()
    nn.init.normal_(head.weight, 0, 0.01)
    nn.init.zeros_(head.bias)
    return net


def _make_block(cin: int, cout: int, has_pool: bool, method: Method | None) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict(conv1=make_convolution(cin, cout, 3, 1, method))
    if has_pool:
        parts["pool"] = nn.MaxPool2d(2)
    parts["bn1"] = nn.BatchNorm2d(cout)
    parts["act1"] = nn.Hardtanh()
    return nn.Sequential(parts)
