"""Batch norm over the images of all processes: the mean and variance of the whole batch, gradients included.

torch's own runs on GPUs only. This one is plain differentiable code around one message forward and one backward a
layer, so that it runs on gloo, in float64, and inside a compiled and captured step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lcrbnn.train.ranks import lost

Norm = nn.modules.batchnorm._BatchNorm


@torch.library.custom_op("lcrbnn::add_ranks", mutates_args=())
def add_ranks(x: Tensor) -> Tensor:
    """The sum over all processes."""
    total = x.clone(memory_format=torch.contiguous_format)
    with lost():
        dist.all_reduce(total)
    return total


@torch.library.custom_op("lcrbnn::gather_ranks", mutates_args=())
def gather_ranks(x: Tensor) -> Tensor:
    """What each process has, a row each."""
    rows = x.new_empty(dist.get_world_size(), *x.shape)
    with lost():
        dist.all_gather(list(rows.unbind()), x.contiguous())
    return rows


@add_ranks.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@gather_ranks.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(dist.get_world_size(), *x.shape)


def _sent_back(context: Any, gradient: Tensor) -> Tensor:
    return add_ranks(gradient)[dist.get_rank()]  # every process has used my row


gather_ranks.register_autograd(_sent_back)


class SharedNorm1d(nn.BatchNorm1d):
    """nn.BatchNorm1d over all processes."""

    shared = True

    def forward(self, x: Tensor) -> Tensor:
        """(n, c) -> the same shape."""
        return shared_norm(self, x) if self.training and self.shared else super().forward(x)


class SharedNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d over all processes."""

    shared = True

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> the same shape."""
        return shared_norm(self, x) if self.training and self.shared else super().forward(x)


SHARED: dict[type[nn.Module], type[Norm]] = {nn.BatchNorm1d: SharedNorm1d, nn.BatchNorm2d: SharedNorm2d}


def shared_norm(norm: Norm, x: Tensor) -> Tensor:
    """Normalise by the batch of all processes; keep running statistics as torch does."""
    axes = [0, *range(2, x.dim())]
    wide = x if x.dtype == torch.float64 else x.float()
    count = x.numel() // x.shape[1]
    mean = wide.mean(axes)
    squares = (wide - _spread(mean, x)).square().sum(axes)
    rows = gather_ranks(torch.cat([mean, squares, mean.new_full((1,), count)]))
    means, sums, counts = rows[:, : len(mean)], rows[:, len(mean) : -1], rows[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    squares = (sums + counts * (means - mean).square()).sum(0)  # inside the processes, and between them
    if norm.track_running_stats:
        _remember(norm, mean.detach(), (squares / (total - 1)).detach())
    y = (wide - _spread(mean, x)) * _spread(torch.rsqrt(squares / total + norm.eps), x)
    if norm.affine:
        y = y * _spread(norm.weight, x) + _spread(norm.bias, x)
    return y.to(x.dtype)


def _spread(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


@torch.no_grad()
def _remember(norm: Norm, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean.to(norm.running_mean), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var), norm.momentum)


def share_norms(model: nn.Module) -> None:
    """Let the batch norms of a network, which keep their parameters and names, normalise over all processes."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            kind = SHARED.get(type(child))
            if kind is None:
                continue
            assert isinstance(child, Norm)
            shared = kind(child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats)
            shared._parameters.update(child._parameters)
            shared._buffers.update(child._buffers)
            shared.train(child.training)
            setattr(parent, name, shared)


@contextmanager
def apart(model: nn.Module) -> Iterator[None]:
    """Inside, shared batch norms normalise by the images of their own process, and send nothing."""
    norms = [m for m in model.modules() if isinstance(m, SharedNorm1d | SharedNorm2d)]
    for norm in norms:
        norm.shared = False
    try:
        yield
    finally:
        for norm in norms:
            norm.shared = True
