"""Batch norms of a compiled step by the kernels of kernels/norm.py; everywhere else they are torch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lcrbnn.kernels.norm import counts_for, normalize, statistics, takes_norm
from lcrbnn.train.reclassed import reclassed


class FusedNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with the same parameters, statistics and names."""

    ahead: Tensor  # counts of the kernels on the way forward and back; no part of its state
    back: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> the same shape."""
        moving = self.training and self.track_running_stats  # statistics may be frozen for a pass
        if not (moving and torch.compiler.is_compiling() and takes_norm(x)):
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        seen, weight, bias = x.detach(), self.weight.detach(), self.bias.detach()
        with torch.no_grad():
            kept = statistics(
                seen, weight, bias, self.running_mean, self.running_var, self.eps, self.momentum, self.ahead
            )
        return normalize(x, self.weight, self.bias, kept, self.back)


@contextmanager
def fused_norms(model: nn.Module) -> Iterator[None]:
    """Inside, the batch norms of a network are such ones, in their places; afterwards they are torch's again."""
    changed = [norm for norm in model.modules() if type(norm) is nn.BatchNorm2d and _suits(norm)]
    with reclassed(changed, FusedNorm2d):
        for norm in changed:
            assert isinstance(norm, FusedNorm2d)
            if "ahead" not in norm.__dict__ or norm.ahead.device != norm.weight.device:
                norm.ahead, norm.back = (counts_for(norm.num_features, norm.weight.device) for _ in range(2))
        yield


def _suits(norm: nn.BatchNorm2d) -> bool:
    return norm.affine and norm.track_running_stats and norm.momentum is not None
