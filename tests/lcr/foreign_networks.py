"""Networks of users for the tests of training loops: a ResNet, a U-Net and a ViT, each with binary layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn


class BasicBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.act = nn.Hardtanh()
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(y)) + shortcut)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardtanh())
        self.layer1, self.layer2 = BasicBlock(8, 8, 1), BasicBlock(8, 16, 2)
        self.fc = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(images))).mean((2, 3)))


class DoubleConv(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.norm, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.BatchNorm2d(cout), nn.Conv2d(cout, cout, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.norm2(self.conv1(self.norm(x))))


class UNet(nn.Module):
    """Returns one class score per pixel, averaged over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), DoubleConv(8, 16), DoubleConv(24, 8)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        y = F.interpolate(self.down(F.avg_pool2d(x, 2)), scale_factor=2.0)
        return self.last(self.up(torch.cat([x, y], 1))).mean((2, 3))


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm1(tokens)
        tokens = tokens + self.attention(x, x, x, need_weights=False)[0]
        return tokens + self.linear2(F.hardtanh(self.linear1(self.norm2(tokens))))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, 4, 16) * 0.1)
        self.blocks = nn.ModuleList([TransformerBlock(16), TransformerBlock(16)])
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


class ForeignNetwork(NamedTuple):
    """A network, the layers that stay real, and the blocks that LCR measures."""

    make: Callable[[], nn.Module]
    skipped_layers: list[str]
    blocks: list[str]


FOREIGN_NETWORKS = {
    "resnet": ForeignNetwork(ResNet, ["stem.0", "*.downsample.*", "fc"], ["layer1", "layer2"]),
    "unet": ForeignNetwork(UNet, ["first", "last"], ["down", "up"]),
    "vit": ForeignNetwork(ViT, ["patches", "head"], ["blocks.0", "blocks.1"]),
}


def make_foreign_network(name: str) -> nn.Module:
    """Return a binary network with the same weights at each call."""
    torch.manual_seed(0)
    make, skipped_layers, _ = FOREIGN_NETWORKS[name]
    return lcrbnn.binarize(make(), "irnet", skip=skipped_layers)


IMAGES = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 4
