"""Pools to one pixel, in a compiled step written as a mean."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor, nn

from lcrbnn.train.reclassed import reclassed


class MeanPool2d(nn.AdaptiveAvgPool2d):
    """nn.AdaptiveAvgPool2d(1), of which torch makes a view by strides: its gradient is a buffer of zeros and a copy.

    torch 2.11's compiler for CPUs may even put the zeros after their use.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c, 1, 1)."""
        return input.mean((2, 3), keepdim=True)


def mean_pools(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, the pools to one pixel of a network are means."""
    pools = [m for m in model.modules() if type(m) is nn.AdaptiveAvgPool2d and m.output_size in (1, (1, 1))]
    return reclassed(pools, MeanPool2d)
