"""ReActNet-A is MobileNet with ordinary binary convolutions for depthwise ones, each with a skip connection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.models.blocks import RPReLU
from lcrbnn.nn.models.network import Network, make_convolution

STEM_CHANNELS = 32
# (number of channels, number of blocks, stride of the first block) of each stage
STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2))


class DuplicateChannels(nn.Module):
    """Concatenates the input channels with a copy of themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the batch (n, c, h, w) with each channel twice, (n, 2 c, h, w)."""
        return torch.cat([x, x], 1)


class MobileBlock(nn.Module):
    """A 3x3 convolution that keeps the number of channels, then a 1x1 convolution that may double it. Both have a skip.

    Where the number of channels doubles, the released code has two 1x1 convolutions that share the input signs. Each
    has its own batch norm and the same skip connection, and the two outputs are concatenated. One convolution with
    twice the filters, one batch norm and a duplicated skip connection compute the same numbers. This class does that.
    """

    def __init__(self, cin: int, cout: int, stride: int, method: Method | None) -> None:
        """Create a block from cin to cout channels, where cout is cin or 2 cin."""
        super().__init__()
        self.shortcut = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.conv1 = make_convolution(cin, cin, 3, stride, method)
        self.bn1 = nn.BatchNorm2d(cin)
        self.act1 = RPReLU(cin)
        self.widen = nn.Identity() if cin == cout else DuplicateChannels()
        self.conv2 = make_convolution(cin, cout, 1, 1, method)
        self.bn2 = nn.BatchNorm2d(cout)
        self.act2 = RPReLU(cout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block: (n, cin, h, w) -> (n, cout, h / stride, w / stride)."""
        y = self.act1(self.bn1(self.conv1(x)) + self.shortcut(x))
        return self.act2(self.bn2(self.conv2(y)) + self.widen(y))


def build_reactnet_a(method: Method | None, num_classes: int, in_channels: int, image_size: int) -> Network:
    """Return a newly initialized network for ImageNet."""
    stem = nn.Sequential(nn.Conv2d(in_channels, STEM_CHANNELS, 3, 2, 1, bias=False), nn.BatchNorm2d(STEM_CHANNELS))
    stages, cin = [], STEM_CHANNELS
    for width, depth, first_stride in STAGES:
        blocks = []
        for j in range(depth):
            blocks.append(MobileBlock(cin, width, first_stride if j == 0 else 1, method))
            cin = width
        stages.append(nn.Sequential(*blocks))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(stem, stages, pool, nn.Linear(cin, num_classes))
