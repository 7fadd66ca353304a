"""The blocks of the residual networks, and the parts they choose from: activations and shortcuts, a row each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.methods import Method
from lcrbnn.models.skeleton import convolution


class RPReLU(nn.Module):
    """ReActNet's activation: PReLU(x + front) + back, all three learned a channel."""

    def __init__(self, channels: int) -> None:
        """Start as a PReLU of slope 0.25."""
        super().__init__()
        self.front = nn.Parameter(torch.zeros(channels, 1, 1))
        self.prelu = nn.PReLU(channels)
        self.back = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> the same shape."""
        front, back = (shift.to(x.dtype) for shift in (self.front, self.back))  # wider ones would widen all behind them
        return self.prelu(x + front) + back


class Maxout(nn.Module):
    """AdaBin's activation, two slopes a channel: above * x where x >= 0, below * x otherwise; a PReLU at the start."""

    def __init__(self, channels: int) -> None:
        """Start from the slopes 1 and 0.25."""
        super().__init__()
        self.above = nn.Parameter(torch.ones(channels))
        self.below = nn.Parameter(torch.full((channels,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> the same shape."""
        above, below = (slope.to(x.dtype)[:, None, None] for slope in (self.above, self.below))
        return x.clamp_min(0) * above + x.clamp_max(0) * below


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "hardtanh": lambda channels: nn.Hardtanh(),
    "relu": lambda channels: nn.ReLU(),
    "prelu": nn.PReLU,
    "rprelu": RPReLU,
    "maxout": Maxout,
    "none": lambda channels: nn.Identity(),
}


class PadChannels(nn.Module):
    """Zero channels, half before and half after, up to a count."""

    def __init__(self, cin: int, cout: int) -> None:
        """From cin to cout channels."""
        super().__init__()
        self.before = (cout - cin) // 2
        self.after = cout - cin - self.before

    @classmethod
    def by(cls, before: int, after: int) -> PadChannels:
        """So many before and after."""
        pad = cls(0, before + after)
        pad.before, pad.after = before, after
        return pad

    def forward(self, x: Tensor) -> Tensor:
        """(n, cin, h, w) -> (n, cout, h, w)."""
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class Subsample(nn.Module):
    """Every stride-th pixel."""

    def __init__(self, stride: int) -> None:
        """Take the stride."""
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c, ceil(h / stride), ceil(w / stride))."""
        return x[:, :, :: self.stride, :: self.stride]


def _subsample(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(Subsample(stride), PadChannels(cin, cout))


def _conv(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(convolution(cin, cout, 1, stride, None), nn.BatchNorm2d(cout))


def _binary_conv(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(convolution(cin, cout, 1, stride, method), nn.BatchNorm2d(cout))


def _pool(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), PadChannels(cin, cout))


def _pool_conv(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), *_conv(cin, cout, 1, None))


# Where shape changes; an identity otherwise.
SHORTCUTS: dict[str, Callable[[int, int, int, Method | None], nn.Module]] = {
    "subsample": _subsample,  # He et al.'s option A, without parameters (ResNet-20)
    "conv": _conv,  # real 1x1 convolution + batch norm (IR-Net)
    "binary-conv": _binary_conv,  # the same, binary (RBNN)
    "pool": _pool,  # average pool + zero channels (ReCU)
    "pool-conv": _pool_conv,  # average pool + real 1x1 convolution + batch norm (Bi-Real, ReActNet)
}


class Block(nn.Module):
    """What the three residual blocks share: convolutions, batch norms, activations, a shortcut."""

    convolutions = 2
    conv1: nn.Module
    bn1: nn.Module
    act1: nn.Module
    conv2: nn.Module
    bn2: nn.Module
    act2: nn.Module

    def __init__(self, cin: int, cout: int, stride: int, method: Method | None, activation: str, shortcut: str) -> None:
        """A block from cin to cout channels; only its first convolution has the stride."""
        super().__init__()
        self.shortcut = nn.Identity() if (cin, stride) == (cout, 1) else SHORTCUTS[shortcut](cin, cout, stride, method)
        for i in range(1, self.convolutions + 1):
            first = i == 1
            self.add_module(f"conv{i}", convolution(cin if first else cout, cout, 3, stride if first else 1, method))
            self.add_module(f"bn{i}", nn.BatchNorm2d(cout))
            self.add_module(f"act{i}", ACTIVATIONS[activation](cout))


class PlainBlock(Block):
    """One skip around two convolutions: the ordinary residual block."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, cin, h, w) -> (n, cout, h / stride, w / stride)."""
        y = self.act1(self.bn1(self.conv1(x)))
        return self.act2(self.bn2(self.conv2(y)) + self.shortcut(x))


class DoubleBlock(Block):
    """A skip around each of two convolutions: Bi-Real's idea inside an ordinary block."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, cin, h, w) -> (n, cout, h / stride, w / stride)."""
        y = self.act1(self.bn1(self.conv1(x)) + self.shortcut(x))
        return self.act2(self.bn2(self.conv2(y)) + y)


class SingleBlock(Block):
    """One convolution with its skip: the block of Bi-Real net and ReActNet."""

    convolutions = 1

    def forward(self, x: Tensor) -> Tensor:
        """(n, cin, h, w) -> (n, cout, h / stride, w / stride)."""
        return self.act1(self.bn1(self.conv1(x)) + self.shortcut(x))


BLOCKS: dict[str, type[Block]] = {"plain": PlainBlock, "double": DoubleBlock, "single": SingleBlock}
