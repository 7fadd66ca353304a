"""Residual networks for small images, written as in their papers' reference code."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def conv3x3(cin: int, cout: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, 3, stride=stride, padding=1, groups=groups, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, cin: int, width: int, stride: int = 1, norm: type = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = conv3x3(cin, width, stride)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(width, width)
        self.bn2 = norm(width)
        self.downsample = None
        if stride != 1 or cin != width:
            self.downsample = nn.Sequential(nn.Conv2d(cin, width, 1, stride, bias=False), norm(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 2

    def __init__(self, cin: int, width: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        cout = width * self.expansion
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride, groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x))


class GroupedBottleneck(Bottleneck):
    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__(cin, width, stride, groups=4)


class PreActBlock(nn.Module):
    expansion = 1

    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = conv3x3(cin, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        if stride != 1 or cin != width:
            self.shortcut = nn.Conv2d(cin, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        return self.conv2(F.relu(self.bn2(out))) + shortcut


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction),
            nn.ReLU(inplace=True),
            nn.Linear(channels // reduction, channels),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class SEBlock(BasicBlock):
    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__(cin, width, stride)
        self.se = SqueezeExcite(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.se(self.bn2(self.conv2(out)))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class CBAM(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 1), nn.ReLU(), nn.Conv2d(channels // 4, channels, 1)
        )
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        attention = self.mlp(F.adaptive_avg_pool2d(x, 1)) + self.mlp(F.adaptive_max_pool2d(x, 1))
        x = x * torch.sigmoid(attention)
        pooled = torch.cat([x.mean(dim=1, keepdim=True), x.max(dim=1, keepdim=True)[0]], dim=1)
        return x * torch.sigmoid(self.spatial(pooled))


class CBAMBlock(BasicBlock):
    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__(cin, width, stride)
        self.cbam = CBAM(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.cbam(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Res2Block(nn.Module):
    expansion = 1

    def __init__(self, cin: int, width: int, stride: int = 1, scales: int = 4) -> None:
        super().__init__()
        self.scales = scales
        self.reduce = nn.Sequential(nn.Conv2d(cin, width, 1, stride, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.convs = nn.ModuleList([conv3x3(width // scales, width // scales) for _ in range(scales - 1)])
        self.bns = nn.ModuleList([nn.BatchNorm2d(width // scales) for _ in range(scales - 1)])
        self.expand = nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Conv2d(cin, width, 1, stride) if stride != 1 or cin != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.chunk(self.reduce(x), self.scales, dim=1)
        outputs = [parts[0]]
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            part = parts[i + 1] if i == 0 else parts[i + 1] + outputs[-1]
            outputs.append(F.relu(bn(conv(part))))
        return F.relu(self.expand(torch.cat(outputs, 1)) + self.shortcut(x))


class GroupNormBlock(BasicBlock):
    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__(cin, width, stride, norm=lambda channels: nn.GroupNorm(4, channels))


class RepVGGBlock(nn.Module):
    expansion = 1

    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.dense = nn.Sequential(conv3x3(cin, width, stride), nn.BatchNorm2d(width))
        self.pointwise = nn.Sequential(nn.Conv2d(cin, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.identity = nn.BatchNorm2d(cin) if cin == width and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.dense(x) + self.pointwise(x)
        return F.relu(out if self.identity is None else out + self.identity(x))


class WideBlock(PreActBlock):
    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__(cin, width, stride)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        return self.conv2(self.dropout(F.relu(self.bn2(self.conv1(out))))) + shortcut


class HighwayBlock(nn.Module):
    expansion = 1

    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.pool = nn.Sequential(conv3x3(cin, width, stride), nn.BatchNorm2d(width), nn.Tanh())
        self.transform = conv3x3(width, width)
        self.gate = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        t = torch.sigmoid(self.gate(x))
        return t * torch.tanh(self.transform(x)) + (1 - t) * x


class ResNet(nn.Module):
    """ResNet for small images: one stem convolution and a stage per entry of `widths`."""

    def __init__(self, block: type, widths: tuple[int, ...] = (8, 16), depth: int = 2, num_classes: int = 10) -> None:
        super().__init__()
        self.in_planes = widths[0]
        self.conv1 = conv3x3(3, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.stages = nn.Sequential(*[self._make_layer(block, w, depth, 1 + (i > 0)) for i, w in enumerate(widths)])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(self.in_planes, num_classes)

    def _make_layer(self, block: type, width: int, depth: int, stride: int) -> nn.Sequential:
        layers = []
        for s in [stride] + [1] * (depth - 1):
            layers.append(block(self.in_planes, width, s))
            self.in_planes = width * block.expansion
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.stages(x)
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


class DeepStemResNet(ResNet):
    """ResNet with a stem of three convolutions, max pooling, and average pooling in the shortcut."""

    def __init__(self) -> None:
        super().__init__(BasicBlock)
        self.stem = nn.Sequential(
            conv3x3(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv3x3(4, 8), nn.BatchNorm2d(8), nn.ReLU(), conv3x3(8, 8)
        )
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        del self.conv1

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.stem(x)), inplace=True))
        for stage in self.stages:
            x = stage(x)
        return self.fc(self.avgpool(x).flatten(1))


RESIDUAL = {
    "resnet_basic": (lambda: ResNet(BasicBlock), (3, 16, 16)),
    "resnet_bottleneck": (lambda: ResNet(Bottleneck), (3, 16, 16)),
    "resnet_deep_stem": (DeepStemResNet, (3, 16, 16)),
    "resnet_preactivation": (lambda: ResNet(PreActBlock), (3, 16, 16)),
    "wide_resnet": (lambda: ResNet(WideBlock, (16, 32), depth=1), (3, 16, 16)),
    "resnext": (lambda: ResNet(GroupedBottleneck, (16, 32), depth=1), (3, 16, 16)),
    "se_resnet": (lambda: ResNet(SEBlock), (3, 16, 16)),
    "cbam_resnet": (lambda: ResNet(CBAMBlock, depth=1), (3, 16, 16)),
    "res2net": (lambda: ResNet(Res2Block, (16, 32), depth=1), (3, 16, 16)),
    "groupnorm_resnet": (lambda: ResNet(GroupNormBlock), (3, 16, 16)),
    "repvgg": (lambda: ResNet(RepVGGBlock), (3, 16, 16)),
    "highway": (lambda: ResNet(HighwayBlock, depth=1), (3, 16, 16)),
}
