"""Plain, branched and densely connected classifiers, and multilayer perceptrons."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 60)
        self.fc2 = nn.Linear(60, 42)
        self.fc3 = nn.Linear(42, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class AlexNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(24 * 9, 32), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(32, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        x = torch.flatten(x, 1)
        return self.classifier(x)


def make_vgg(config: list[int | str], batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for v in config:
        if v == "M":
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        layers.append(nn.Conv2d(channels, v, kernel_size=3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(v))
        layers.append(nn.ReLU(inplace=True))
        channels = v
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(channels * 16, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10)
    )


def make_nin() -> nn.Sequential:
    def block(cin: int, cout: int, k: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(cin, cout, k, padding=k // 2), nn.ReLU(), nn.Conv2d(cout, cout, 1), nn.ReLU())

    return nn.Sequential(
        block(3, 16, 5),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Dropout(0.5),
        block(16, 24, 3),
        nn.AvgPool2d(3, stride=2, padding=1),
        block(24, 10, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Inception(nn.Module):
    def __init__(self, cin: int, c1: int, c3: tuple[int, int], c5: tuple[int, int], pool: int) -> None:
        super().__init__()
        self.b1 = nn.Conv2d(cin, c1, 1)
        self.b2 = nn.Sequential(nn.Conv2d(cin, c3[0], 1), nn.ReLU(), nn.Conv2d(c3[0], c3[1], 3, padding=1))
        self.b3 = nn.Sequential(nn.Conv2d(cin, c5[0], 1), nn.ReLU(), nn.Conv2d(c5[0], c5[1], 5, padding=2))
        self.b4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(cin, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([branch(x) for branch in (self.b1, self.b2, self.b3, self.b4)], dim=1))


class GoogLeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.inception_a = Inception(16, 8, (8, 12), (4, 8), 4)
        self.inception_b = Inception(32, 12, (8, 16), (4, 8), 4)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.inception_a(self.stem(x)), kernel_size=3, stride=2, ceil_mode=True)
        x = self.inception_b(x)
        x = F.avg_pool2d(x, x.shape[2:]).flatten(start_dim=1)
        return self.fc(self.dropout(x))


class InceptionResNetBlock(nn.Module):
    def __init__(self, channels: int, scale: float = 0.17) -> None:
        super().__init__()
        self.scale = scale
        self.branch0 = nn.Conv2d(channels, 8, 1)
        self.branch1 = nn.Sequential(
            nn.Conv2d(channels, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, (1, 7), padding=(0, 3)), nn.ReLU(),
            nn.Conv2d(8, 8, (7, 1), padding=(3, 0)),
        )  # fmt: skip
        self.conv2d = nn.Conv2d(16, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.cat((F.relu(self.branch0(x)), F.relu(self.branch1(x))), 1)
        return F.relu(self.conv2d(out) * self.scale + x)


class DenseLayer(nn.Module):
    def __init__(self, cin: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.cat(features, 1)
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class DenseBlock(nn.ModuleDict):
    def __init__(self, num_layers: int, cin: int, growth: int) -> None:
        super().__init__()
        for i in range(num_layers):
            self.add_module(f"denselayer{i + 1}", DenseLayer(cin + i * growth, growth))

    def forward(self, init_features: Tensor) -> Tensor:
        features = [init_features]
        for _, layer in self.items():
            features.append(layer(features))
        return torch.cat(features, 1)


def make_densenet() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            [
                ("conv0", nn.Conv2d(3, 16, 3, padding=1, bias=False)),
                ("denseblock1", DenseBlock(3, 16, 8)),
                ("norm1", nn.BatchNorm2d(40)),
                ("relu1", nn.ReLU(inplace=True)),
                ("conv1", nn.Conv2d(40, 20, 1, bias=False)),
                ("pool1", nn.AvgPool2d(2, stride=2)),
                ("denseblock2", DenseBlock(2, 20, 8)),
                ("norm2", nn.BatchNorm2d(36)),
                ("relu2", nn.ReLU(inplace=True)),
                ("gap", nn.AdaptiveAvgPool2d(1)),
                ("flatten", nn.Flatten()),
                ("classifier", nn.Linear(36, 10)),
            ]
        )
    )


class Residual(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


def make_convmixer(dim: int, depth: int, kernel_size: int = 5, patch_size: int = 2) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size),
        nn.GELU(),
        nn.BatchNorm2d(dim),
        *[
            nn.Sequential(
                Residual(
                    nn.Sequential(
                        nn.Conv2d(dim, dim, kernel_size, groups=dim, padding="same"), nn.GELU(), nn.BatchNorm2d(dim)
                    )
                ),
                nn.Conv2d(dim, dim, kernel_size=1),
                nn.GELU(),
                nn.BatchNorm2d(dim),
            )
            for _ in range(depth)
        ],
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(dim, 10),
    )


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int, layer_scale: float = 1e-1) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(layer_scale * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)
        x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        x = self.gamma * x
        x = x.permute(0, 3, 1, 2)
        return shortcut + x


def make_convnext() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4),
        ConvNeXtBlock(16),
        ConvNeXtBlock(16),
        nn.GroupNorm(1, 16),
        nn.Conv2d(16, 24, 2, stride=2),
        ConvNeXtBlock(24),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(1),
        nn.LayerNorm(24),
        nn.Linear(24, 10),
    )


class MLP(nn.Module):
    def __init__(self, sizes: tuple[int, ...] = (64, 48, 32, 10), activation: type = nn.ReLU) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class ResidualMLP(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


CLASSIC = {
    "lenet": (LeNet, (1, 28, 28)),
    "alexnet": (AlexNet, (3, 32, 32)),
    "vgg": (lambda: make_vgg([16, "M", 24, 24, "M", 32], batch_norm=False), (3, 16, 16)),
    "vgg_batch_norm": (lambda: make_vgg([16, 16, "M", 32, "M"], batch_norm=True), (3, 16, 16)),
    "network_in_network": (make_nin, (3, 16, 16)),
    "googlenet": (GoogLeNet, (3, 16, 16)),
    "inception_resnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            InceptionResNetBlock(16),
            InceptionResNetBlock(16),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        ),
        (3, 16, 16),
    ),
    "densenet": (make_densenet, (3, 16, 16)),
    "convmixer": (lambda: make_convmixer(16, 2), (3, 16, 16)),
    "convnext": (make_convnext, (3, 32, 32)),
    "mlp": (MLP, (1, 8, 8)),
    "mlp_leaky_relu": (lambda: MLP((64, 40, 40, 10), nn.LeakyReLU), (1, 8, 8)),
    "residual_mlp": (ResidualMLP, (1, 8, 8)),
}
