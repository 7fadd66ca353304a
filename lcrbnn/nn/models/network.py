"""A network consists of a stem, stages of blocks, and a head. LCR measures the inputs of some of these modules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lcrbnn.nn.kernels.conv import conv2d
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.binarizer import Method


class Network(nn.Module):
    """A network that applies stem -> layer1 -> layer2 ... -> pool -> head."""

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Sequential], pool: nn.Module, head: nn.Module) -> None:
        """Register the parts. Stage i becomes the attribute layer{i}."""
        super().__init__()
        self.stem = stem
        self.stage_names = tuple(f"layer{i}" for i in range(1, len(stages) + 1))
        for name, stage in zip(self.stage_names, stages, strict=True):
            setattr(self, name, stage)
        self.pool = pool
        self.head = head

    @property
    def block_names(self) -> tuple[str, ...]:
        """Return the names of the blocks in forward order: "layer1.0", "layer1.1", ..."""
        return tuple(f"{s}.{i}" for s in self.stage_names for i, _ in enumerate(self.get_submodule(s).children()))

    @property
    def main_path(self) -> tuple[str, ...]:
        """Return the names of the convolutions on the main path in forward order, then "pool".

        The inputs of these modules are the activations between two convolutions.
        """
        main = (
            f"{b}.{n}"
            for b in self.block_names
            for n, _ in self.get_submodule(b).named_children()
            if n.startswith("conv")
        )
        return (*main, "pool")

    def extract_stage_outputs(self, images: Tensor) -> list[Tensor]:
        """Return a list with the output of each stage."""
        stage_outputs, x = [], self.stem(images)
        for name in self.stage_names:
            x = getattr(self, name)(x)
            stage_outputs.append(x)
        return stage_outputs

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (n, num_classes) of images (n, channels, h, w)."""
        return self.head(self.pool(self.extract_stage_outputs(images)[-1]))


class Conv2d(nn.Conv2d):
    """nn.Conv2d that uses a faster kernel for few channels (see lcrbnn.nn.kernels)."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            return super()._conv_forward(x, weight, bias)
        return conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


def make_convolution(
    in_channels: int, out_channels: int, kernel_size: int, stride: int, method: Method | None
) -> nn.Conv2d:
    """Return a "same" convolution without bias, which is binary, or real if the method is None."""
    if method is None:
        return Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
    return BinaryConv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, method=method)
