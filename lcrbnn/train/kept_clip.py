"""Hardtanhs of a compiled step that find their way back by what they gave, not by what they got."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.train.reclassed import reclassed


class _Clip(torch.autograd.Function):
    """A number that was cut is the bound afterwards, one inside is not: the result says where the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        y = x.clamp(low, high)
        ctx.save_for_backward(y)
        ctx.low, ctx.high = low, high
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return torch.where((y <= ctx.low) | (y >= ctx.high), 0, g), None, None


class KeptClip(nn.Hardtanh):
    """nn.Hardtanh, whose result is kept anyway, for the layer behind it: torch also keeps a mask, or the sum before it.

    In short numbers torch's gradient of it is long besides, and is written and read as such. Values and gradients are
    those of nn.Hardtanh on a number of that type.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The same shape."""
        y: Tensor = _Clip.apply(input, self.min_val, self.max_val)
        return y


def kept_clips(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, the hardtanhs of a network are such ones."""
    return reclassed([m for m in model.modules() if type(m) is nn.Hardtanh], KeptClip)
