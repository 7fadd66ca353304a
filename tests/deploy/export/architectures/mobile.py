"""Networks for phones: depthwise convolutions, channel shuffles, gates."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def conv_bn(cin: int, cout: int, k: int = 3, stride: int = 1, groups: int = 1, act: type | None = nn.ReLU) -> nn.Module:
    layers = [nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]
    if act is not None:
        layers.append(act())
    return nn.Sequential(*layers)


class MobileNetV1(nn.Module):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        plan = [(8, 16, 1), (16, 32, 2), (32, 32, 1)]
        self.model = nn.Sequential(
            conv_bn(3, 8, stride=2),
            *[nn.Sequential(conv_bn(i, i, 3, s, groups=i), conv_bn(i, o, 1)) for i, o, s in plan],
            nn.AvgPool2d(4),
        )
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.model(x)
        x = x.view(-1, 32)
        return self.fc(x)


class InvertedResidual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int, expand: int, act: type = nn.ReLU6, se: bool = False) -> None:
        super().__init__()
        hidden = cin * expand
        self.use_res_connect = stride == 1 and cin == cout
        self.conv = nn.Sequential(
            conv_bn(cin, hidden, 1, act=act),
            conv_bn(hidden, hidden, 3, stride, groups=hidden, act=act),
            SqueezeExcitation(hidden) if se else nn.Identity(),
            conv_bn(hidden, cout, 1, act=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, gate: type = nn.Hardsigmoid) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, channels // 4, 1)
        self.fc2 = nn.Conv2d(channels // 4, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.gate(self.fc2(F.relu(self.fc1(self.avgpool(x)))))
        return scale * x


class MobileNet(nn.Module):
    """MobileNetV2, MobileNetV3 and relatives: a table of inverted residuals between a stem and a head."""

    def __init__(self, act: type, se: bool, dropout: float = 0.2) -> None:
        super().__init__()
        settings = [(8, 1, 1), (16, 2, 2), (16, 2, 1), (24, 2, 2)]
        features = [conv_bn(3, 8, act=act)]
        cin = 8
        for cout, expand, stride in settings:
            features.append(InvertedResidual(cin, cout, stride, expand, act, se))
            cin = cout
        features.append(conv_bn(cin, 48, 1, act=act))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = x.mean([2, 3])
        return self.classifier(x)


class MBConv(nn.Module):
    """Block of EfficientNet, with SiLU and squeeze-and-excite."""

    def __init__(self, cin: int, cout: int, expand: int = 4, stride: int = 1, k: int = 3) -> None:
        super().__init__()
        mid = cin * expand
        self.skip = stride == 1 and cin == cout
        self.expand = conv_bn(cin, mid, 1, act=nn.SiLU)
        self.depthwise = conv_bn(mid, mid, k, stride, groups=mid, act=nn.SiLU)
        self.se_reduce = nn.Conv2d(mid, cin // 4, 1)
        self.se_expand = nn.Conv2d(cin // 4, mid, 1)
        self.project = conv_bn(mid, cout, 1, act=None)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.depthwise(self.expand(inputs))
        s = F.adaptive_avg_pool2d(x, 1)
        s = self.se_expand(F.silu(self.se_reduce(s)))
        x = torch.sigmoid(s) * x
        x = self.project(x)
        if self.skip:
            x = x + inputs
        return x


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    b, c, h, w = x.size()
    x = x.view(b, groups, c // groups, h, w)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(b, c, h, w)


class ShuffleV1Unit(nn.Module):
    def __init__(self, channels: int, groups: int = 2, stride: int = 1) -> None:
        super().__init__()
        self.groups, self.stride = groups, stride
        self.compress = conv_bn(channels, channels, 1, groups=groups)
        self.depthwise = conv_bn(channels, channels, 3, stride, groups=channels, act=None)
        self.expand = conv_bn(channels, channels, 1, groups=groups, act=None)

    def forward(self, x: Tensor) -> Tensor:
        out = channel_shuffle(self.compress(x), self.groups)
        out = self.expand(self.depthwise(out))
        if self.stride == 2:
            return F.relu(torch.cat((F.avg_pool2d(x, 3, stride=2, padding=1), out), 1))
        return F.relu(out + x)


class ShuffleV2Unit(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = cout // 2
        if stride > 1:
            self.branch1 = nn.Sequential(conv_bn(cin, cin, 3, stride, groups=cin, act=None), conv_bn(cin, half, 1))
        start = cin if stride > 1 else half
        self.branch2 = nn.Sequential(
            conv_bn(start, half, 1), conv_bn(half, half, 3, stride, groups=half, act=None), conv_bn(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class Fire(nn.Module):
    def __init__(self, cin: int, squeeze: int, expand: int, act: type = nn.ReLU) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(cin, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.squeeze(x))
        return torch.cat([self.act(self.expand1x1(x)), self.act(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    def __init__(self, act: type = nn.ReLU, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=1),
            act(),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(16, 8, 16, act),
            Fire(32, 8, 16, act),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(32, 8, 24, act),
        )
        final_conv = nn.Conv2d(48, num_classes, kernel_size=1)
        self.classifier = nn.Sequential(nn.Dropout(p=0.5), final_conv, act(), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class GhostModule(nn.Module):
    def __init__(self, cin: int, cout: int, relu: bool = True) -> None:
        super().__init__()
        self.cout = cout
        primary = -(-cout // 2)
        self.primary_conv = conv_bn(cin, primary, 1, act=nn.ReLU if relu else None)
        self.cheap_operation = conv_bn(primary, primary, 3, groups=primary, act=nn.ReLU if relu else None)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary_conv(x)
        out = torch.cat([x1, self.cheap_operation(x1)], dim=1)
        return out[:, : self.cout, :, :]


class GhostBottleneck(nn.Module):
    def __init__(self, channels: int, mid: int) -> None:
        super().__init__()
        self.ghost1 = GhostModule(channels, mid)
        self.se = SqueezeExcitation(mid)
        self.ghost2 = GhostModule(mid, channels, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.ghost2(self.se(self.ghost1(x))) + x


def classify(*body: nn.Module, channels: int) -> nn.Sequential:
    return nn.Sequential(
        conv_bn(3, 16), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, 10)
    )


MOBILE = {
    "mobilenet_v1": (MobileNetV1, (3, 16, 16)),
    "mobilenet_v2": (lambda: MobileNet(nn.ReLU6, se=False), (3, 16, 16)),
    "mobilenet_v3": (lambda: MobileNet(nn.Hardswish, se=True), (3, 16, 16)),
    "mnasnet": (lambda: MobileNet(nn.ReLU, se=True), (3, 16, 16)),
    "efficientnet": (
        lambda: classify(MBConv(16, 16), MBConv(16, 24, stride=2), MBConv(24, 24, k=5), channels=24),
        (3, 16, 16),
    ),
    "shufflenet_v1": (
        lambda: classify(ShuffleV1Unit(16), ShuffleV1Unit(16, stride=2), ShuffleV1Unit(32), channels=32),
        (3, 16, 16),
    ),
    "shufflenet_v2": (
        lambda: classify(ShuffleV2Unit(16, 32, 2), ShuffleV2Unit(32, 32, 1), channels=32),
        (3, 16, 16),
    ),
    "squeezenet": (SqueezeNet, (3, 24, 24)),
    "squeezenet_relu6": (lambda: SqueezeNet(nn.ReLU6), (3, 24, 24)),
    "squeezenet_hardswish": (lambda: SqueezeNet(nn.Hardswish), (3, 24, 24)),
    "ghostnet": (lambda: classify(GhostBottleneck(16, 32), GhostBottleneck(16, 24), channels=16), (3, 16, 16)),
}
