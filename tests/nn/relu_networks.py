"""Small networks as people write them, with activations in front of the layers that become binary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """A residual block whose two activations are one module."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.down is None else self.down(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ReluResNet(nn.Module):
    """A ResNet with max pooling after the stem."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = BasicBlock(8, 8, 1), BasicBlock(8, 16, 2)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.pool(self.relu(self.bn1(self.conv1(x))))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class UntraceableResNet(ReluResNet):
    """The same with control flow that depends on the image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 255 if x.max() > 100 else x)


class InvertedResidual(nn.Module):
    """The block of MobileNetV2: ReLU6 inside, none at the end."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Sequential(nn.Conv2d(channels, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)),
            nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)),
            nn.Conv2d(16, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class MobileNet(nn.Module):
    """A MobileNetV2 with two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6()),
            InvertedResidual(8),
            InvertedResidual(8),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class UNet(nn.Module):
    """A U-Net with one level, whose activation is called as a function."""

    def __init__(self, act: object = F.relu) -> None:
        super().__init__()
        self.begin, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.end, self.act = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 2, 1), act

    def forward(self, x: Tensor) -> Tensor:
        fine = self.act(self.begin(x))
        coarse = self.act(self.down(F.max_pool2d(fine, 2)))
        both = torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], 1)
        return self.end(self.act(self.up(both)))


def make_vgg() -> nn.Sequential:
    """Return a VGG with dropout in its classifier."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Linear(32, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 10)),
    )


class ViT(nn.Module):
    """One encoder block of a vision transformer: LayerNorm and GELU, attention from linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.norm1, self.qkv, self.proj = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm2, self.mlp = nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj((q @ k.transpose(1, 2) / 4).softmax(-1) @ v)
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(1))


class PreActivationBlock(nn.Module):
    """Batch norm, ReLU, convolution, with an identity shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.act, self.conv = nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.act(self.bn(x)))


class SqueezeExcite(nn.Module):
    """Weights the channels of a map by a sigmoid."""

    def __init__(self, gate: object = torch.sigmoid) -> None:
        super().__init__()
        self.squeeze, self.relu, self.excite, self.gate = nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.excite(self.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
