"""Networks as people write them: U-Net, ViT, ShuffleNetV2, squeeze-and-excite, ConvNeXt and transformer encoders."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import binarize
from tests.deploy.export.random_networks import randomize_parameters
from tests.deploy.export.test_operators import RUNS_ENGINE, make_images
from tests.deploy.export.torch_comparison import assert_export_equals_torch


def make_double_conv(cin: int, cout: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.Hardtanh(),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.Hardtanh(),
    )  # fmt: skip


class UNet(nn.Module):
    """A U-Net with two levels; the decoder resizes or has transposed convolutions, and pads to the encoder's size."""

    def __init__(self, *, has_bilinear: bool) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = make_double_conv(4, 8), make_double_conv(8, 12), make_double_conv(12, 16)
        self.up2 = self.make_upsampling(16, 12, has_bilinear)
        self.up1 = self.make_upsampling(12, 8, has_bilinear)
        self.join2, self.join1 = make_double_conv(24, 12), make_double_conv(16, 8)
        self.head = nn.Conv2d(8, 3, 1)

    def make_upsampling(self, cin: int, cout: int, has_bilinear: bool) -> nn.Module:
        if has_bilinear:
            return nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(cin, cout, 1)
            )
        return nn.ConvTranspose2d(cin, cout, 2, 2)

    def join(self, x: Tensor, skip: Tensor) -> Tensor:
        dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat([skip, x], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        x = self.middle(F.max_pool2d(b, 2))
        x = self.join2(self.join(self.up2(x), b))
        return self.head(self.join1(self.join(self.up1(x), a)))


class Attention(nn.Module):
    """The attention of most ViT code."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(dim), nn.LayerNorm(dim), Attention(dim, 2)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer with a class token and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, 16, 2, 2)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 13, 16))
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.positions[:, : x.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ShuffleUnit(nn.Module):
    """The unit of ShuffleNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, dim=1)
        out = torch.cat((x1, self.branch(x2)), dim=1)
        b, c, h, w = out.size()
        return out.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * torch.sigmoid(self.fc2(F.silu(self.fc1(y)))).view(b, c, 1, 1).expand_as(x)


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8, eps=1e-6)
        self.wide, self.narrow, self.act = nn.Linear(8, 32), nn.Linear(32, 8), nn.GELU()
        self.gamma = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrow(self.act(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Tokens(nn.Module):
    """Tokens of a map, with the images on the first or second axis, and back."""

    def __init__(self, body: nn.Module, *, batch_first: bool) -> None:
        super().__init__()
        self.body, self.axes = body, (0, 2, 1) if batch_first else (2, 0, 1)
        self.back = (0, 2, 1) if batch_first else (1, 2, 0)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = self.body(x.flatten(2).permute(*self.axes))
        return (y[0] if isinstance(y, tuple) else y).permute(*self.back).reshape(n, c, h, w)


class SelfAttention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x)


def make_encoder(*, batch_first: bool, **options: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, **options)
    return Tokens(nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False), batch_first=batch_first)


def make_stem(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *layers, nn.Conv2d(8, 3, 1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "U-Net, bilinear": lambda: UNet(has_bilinear=True),
    "U-Net, transposed": lambda: UNet(has_bilinear=False),
    "ViT": ViT,
    "ShuffleNetV2": lambda: make_stem(ShuffleUnit(), nn.Conv2d(8, 8, 1), ShuffleUnit()),
    "squeeze and excite": lambda: make_stem(SqueezeExcite(), nn.Conv2d(8, 8, 1), SqueezeExcite()),
    "ConvNeXt": lambda: make_stem(ConvNeXtBlock(), ConvNeXtBlock()),
    "encoder": lambda: make_stem(make_encoder(batch_first=True)),
    "encoder, images second": lambda: make_stem(make_encoder(batch_first=False)),
    "encoder, norm first": lambda: make_stem(make_encoder(batch_first=True, norm_first=True, activation="gelu")),
    "attention": lambda: make_stem(Tokens(SelfAttention(batch_first=True), batch_first=True)),
    "attention, images second": lambda: make_stem(Tokens(SelfAttention(bias=False), batch_first=False)),
}


def make_random_network(name: str) -> nn.Module:
    torch.manual_seed(4)
    net = NETWORKS[name]()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_real_networks_equal_pytorch(name: str) -> None:
    images = make_images(2, 4, 7, 9) if name.startswith("U-Net") else make_images(2, 4, 6, 8)
    assert_export_equals_torch(make_random_network(name), images, runs_engine=RUNS_ENGINE)


@pytest.mark.parametrize("name", NETWORKS)
def test_binary_networks_equal_pytorch(name: str) -> None:
    images = make_images(1, 4, 7, 9) if name.startswith("U-Net") else make_images(1, 4, 6, 8)
    net = make_random_network(name)
    binarize(net, "irnet", skip=["0"] if name.startswith("attention") else None)
    randomize_parameters(net, images)
    assert_export_equals_torch(net.eval(), images, runs_engine=RUNS_ENGINE)
