"""The blocks of the residual networks, and the tables of activations and shortcuts that they use."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.models.network import make_convolution


class RPReLU(nn.Module):
    """The activation of ReActNet, PReLU(x + front) + back, with three parameters per channel that are learned."""

    def __init__(self, channels: int) -> None:
        """Start as a PReLU with slope 0.25."""
        super().__init__()
        self.front = nn.Parameter(torch.zeros(channels, 1, 1))
        self.prelu = nn.PReLU(channels)
        self.back = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation. The shape (n, c, h, w) does not change."""
        # The shifts are cast to the dtype of x. Otherwise float32 shifts would turn all later activations into float32.
        front, back = (shift.to(x.dtype) for shift in (self.front, self.back))
        return self.prelu(x + front) + back


class Maxout(nn.Module):
    """The activation of AdaBin, which multiplies x by a learned slope per channel.

    There is one slope for x >= 0 and another one for x < 0.
    """

    def __init__(self, channels: int) -> None:
        """Start with the slopes 1 (above 0) and 0.25 (below 0), like a PReLU."""
        super().__init__()
        self.above = nn.Parameter(torch.ones(channels))
        self.below = nn.Parameter(torch.full((channels,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation. The shape (n, c, h, w) does not change."""
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
    """Adds zero channels, half of them before and half after the existing ones."""

    def __init__(self, cin: int, cout: int) -> None:
        """Pad from cin to cout channels."""
        super().__init__()
        self.before = (cout - cin) // 2
        self.after = cout - cin - self.before

    @classmethod
    def from_counts(cls, before: int, after: int) -> PadChannels:
        """Return a module that adds these numbers of zero channels before and after the existing ones."""
        pad = cls(0, before + after)
        pad.before, pad.after = before, after
        return pad

    def forward(self, x: Tensor) -> Tensor:
        """Pad the channels of a batch (n, cin, h, w) with zeros to (n, cout, h, w)."""
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class Subsample(nn.Module):
    """Keeps every stride-th pixel."""

    def __init__(self, stride: int) -> None:
        """Set the stride."""
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return every stride-th pixel of (n, c, h, w), which gives (n, c, ceil(h / stride), ceil(w / stride))."""
        return x[:, :, :: self.stride, :: self.stride]


def _make_subsample_shortcut(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(Subsample(stride), PadChannels(cin, cout))


def _make_conv_shortcut(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(make_convolution(cin, cout, 1, stride, None), nn.BatchNorm2d(cout))


def _make_binary_conv_shortcut(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(make_convolution(cin, cout, 1, stride, method), nn.BatchNorm2d(cout))


def _make_pool_shortcut(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), PadChannels(cin, cout))


def _make_pool_conv_shortcut(cin: int, cout: int, stride: int, method: Method | None) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), *_make_conv_shortcut(cin, cout, 1, None))


# Blocks that change the shape use these shortcuts. All other blocks have an identity as their shortcut.
SHORTCUTS: dict[str, Callable[[int, int, int, Method | None], nn.Module]] = {
    "subsample": _make_subsample_shortcut,  # shortcut without parameters: option A of He et al. (ResNet-20)
    "conv": _make_conv_shortcut,  # real 1x1 convolution, followed by a batch norm (IR-Net)
    "binary-conv": _make_binary_conv_shortcut,  # binary 1x1 convolution, followed by a batch norm (RBNN)
    "pool": _make_pool_shortcut,  # average pool, followed by additional zero channels (ReCU)
    # Average pool, followed by a real 1x1 convolution and a batch norm (Bi-Real, ReActNet)
    "pool-conv": _make_pool_conv_shortcut,
}


class Block(nn.Module):
    """Base class of the residual blocks, which creates convolutions, batch norms, activations and the shortcut."""

    num_convolutions = 2
    conv1: nn.Module
    bn1: nn.Module
    act1: nn.Module
    conv2: nn.Module
    bn2: nn.Module
    act2: nn.Module

    def __init__(self, cin: int, cout: int, stride: int, method: Method | None, activation: str, shortcut: str) -> None:
        """Create a block from cin to cout channels. Only its first convolution has the stride."""
        super().__init__()
        self.shortcut = nn.Identity() if (cin, stride) == (cout, 1) else SHORTCUTS[shortcut](cin, cout, stride, method)
        for i in range(1, self.num_convolutions + 1):
            is_first = i == 1
            self.add_module(
                f"conv{i}", make_convolution(cin if is_first else cout, cout, 3, stride if is_first else 1, method)
            )
            self.add_module(f"bn{i}", nn.BatchNorm2d(cout))
            self.add_module(f"act{i}", ACTIVATIONS[activation](cout))


class PlainBlock(Block):
    """The ordinary residual block, with one skip connection around two convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (n, cin, h, w), which gives (n, cout, h / stride, w / stride)."""
        y = self.act1(self.bn1(self.conv1(x)))
        return self.act2(self.bn2(self.conv2(y)) + self.shortcut(x))


class DoubleBlock(Block):
    """An ordinary block with a skip connection around each of its two convolutions, as in Bi-Real."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (n, cin, h, w), which gives (n, cout, h / stride, w / stride)."""
        y = self.act1(self.bn1(self.conv1(x)) + self.shortcut(x))
        return self.act2(self.bn2(self.conv2(y)) + y)


class SingleBlock(Block):
    """The block of Bi-Real net and ReActNet, which has one convolution with a skip connection around it."""

    num_convolutions = 1

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (n, cin, h, w), which gives (n, cout, h / stride, w / stride)."""
        return self.act1(self.bn1(self.conv1(x)) + self.shortcut(x))


BLOCKS: dict[str, type[Block]] = {"plain": PlainBlock, "double": DoubleBlock, "single": SingleBlock}
