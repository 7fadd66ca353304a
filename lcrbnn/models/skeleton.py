"""A network is a stem, stages of blocks, and a head; it names the places between which retention is measured."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lcrbnn.kernels.conv import conv2d
from lcrbnn.layers import BinaryConv2d
from lcrbnn.methods import Method


class Network(nn.Module):
    """stem -> layer1 -> layer2 ... -> pool -> head."""

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Sequential], pool: nn.Module, head: nn.Module) -> None:
        """Take the parts; stage i becomes the attribute layer{i}."""
        super().__init__()
        self.stem = stem
        self.stages = tuple(f"layer{i}" for i in range(1, len(stages) + 1))
        for name, stage in zip(self.stages, stages, strict=True):
            setattr(self, name, stage)
        self.pool = pool
        self.head = head

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks, in forward order: "layer1.0", "layer1.1", ..."""
        return tuple(f"{s}.{i}" for s in self.stages for i, _ in enumerate(self.get_submodule(s).children()))

    @property
    def chain(self) -> tuple[str, ...]:
        """The modules whose inputs are the maps between the convolutions of the main path, then "pool"."""
        main = (
            f"{b}.{n}" for b in self.blocks for n, _ in self.get_submodule(b).named_children() if n.startswith("conv")
        )
        return (*main, "pool")

    def features(self, images: Tensor) -> list[Tensor]:
        """One map a stage."""
        maps, x = [], self.stem(images)
        for name in self.stages:
            x = getattr(self, name)(x)
            maps.append(x)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, h, w) -> logits (n, classes)."""
        return self.head(self.pool(self.features(images)[-1]))


class Conv2d(nn.Conv2d):
    """nn.Conv2d, with a faster kernel where there are few channels (lcrbnn.kernels)."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            return super()._conv_forward(x, weight, bias)
        return conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


def convolution(cin: int, cout: int, kernel: int, stride: int, method: Method | None) -> nn.Conv2d:
    """A convolution with "same" padding and no bias: binary by the method, or real for None."""
    if method is None:
        return Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)
    return BinaryConv2d(cin, cout, kernel, stride, kernel // 2, method=method)
