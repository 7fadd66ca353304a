"""ReActNet-A: MobileNet's plan with binary convolutions that are not depthwise, and a skip around each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.methods import Method
from lcrbnn.models.blocks import RPReLU
from lcrbnn.models.skeleton import Network, convolution

FIRST = 32  # channels of the stem
STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2))  # channels, blocks, stride of the first


class Twice(nn.Module):
    """The same channels a second time after the first."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, 2 c, h, w)."""
        return torch.cat([x, x], 1)


class MobileBlock(nn.Module):
    """A 3x3 convolution that keeps the channels, then a 1x1 that may double them; a skip around each.

    Where channels double, the released code has two 1x1 convolutions behind one sign, each with a batch norm and the
    same skip, and puts their outputs side by side. One convolution of twice the filters, its batch norm and the skip
    twice are the same numbers.
    """

    def __init__(self, cin: int, cout: int, stride: int, method: Method | None) -> None:
        """A block from cin to cout channels, cin or twice that."""
        super().__init__()
        self.shortcut = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.conv1 = convolution(cin, cin, 3, stride, method)
        self.bn1 = nn.BatchNorm2d(cin)
        self.act1 = RPReLU(cin)
        self.widen = nn.Identity() if cin == cout else Twice()
        self.conv2 = convolution(cin, cout, 1, 1, method)
        self.bn2 = nn.BatchNorm2d(cout)
        self.act2 = RPReLU(cout)

    def forward(self, x: Tensor) -> Tensor:
        """(n, cin, h, w) -> (n, cout, h / stride, w / stride)."""
        y = self.act1(self.bn1(self.conv1(x)) + self.shortcut(x))
        return self.act2(self.bn2(self.conv2(y)) + self.widen(y))


def build_react_a(method: Method | None, classes: int, in_channels: int, image: int) -> Network:
    """The network for ImageNet, freshly initialised."""
    stem = nn.Sequential(nn.Conv2d(in_channels, FIRST, 3, 2, 1, bias=False), nn.BatchNorm2d(FIRST))
    stages, cin = [], FIRST
    for width, depth, first in STAGES:
        blocks = []
        for j in range(depth):
            blocks.append(MobileBlock(cin, width, first if j == 0 else 1, method))
            cin = width
        stages.append(nn.Sequential(*blocks))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(stem, stages, pool, nn.Linear(cin, classes))
