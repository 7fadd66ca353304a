"""Synchronized batch norm uses the mean and variance of the whole batch, over all processes. Gradients are exact.

torch's own version only runs on GPUs. This one is differentiable Python code with one message per layer, in the forward
pass and in the backward pass. So it also runs with gloo, in float64, and inside a compiled and captured step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lcrbnn.train.distributed.ranks import explain_lost_connection

Norm = nn.modules.batchnorm._BatchNorm


@torch.library.custom_op("lcrbnn::add_ranks", mutates_args=())
def all_reduce_sum(x: Tensor) -> Tensor:
    """Return the sum of the tensors of all processes."""
    total = x.clone(memory_format=torch.contiguous_format)
    with explain_lost_connection():
        dist.all_reduce(total)
    return total


@torch.library.custom_op("lcrbnn::gather_ranks", mutates_args=())
def all_gather_rows(x: Tensor) -> Tensor:
    """Return the tensors of all processes as rows, in order of rank."""
    rows = x.new_empty(dist.get_world_size(), *x.shape)
    with explain_lost_connection():
        dist.all_gather(list(rows.unbind()), x.contiguous())
    return rows


@all_reduce_sum.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@all_gather_rows.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(dist.get_world_size(), *x.shape)


def _gather_backward(context: Any, gradient: Tensor) -> Tensor:
    # the gradient sums over all processes, because each of them has used the row of this one
    return all_reduce_sum(gradient)[dist.get_rank()]


all_gather_rows.register_autograd(_gather_backward)


class SyncBatchNorm1d(nn.BatchNorm1d):
    """nn.BatchNorm1d with the statistics of the batches of all processes."""

    is_synchronized = True

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, (n, c), with the statistics of the whole batch."""
        return sync_batch_norm(self, x) if self.training and self.is_synchronized else super().forward(x)


class SyncBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with the statistics of the batches of all processes."""

    is_synchronized = True

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, (n, c, h, w), with the statistics of the whole batch."""
        return sync_batch_norm(self, x) if self.training and self.is_synchronized else super().forward(x)


SYNC_BATCH_NORM_CLASSES: dict[type[nn.Module], type[Norm]] = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
}


def sync_batch_norm(norm: Norm, x: Tensor) -> Tensor:
    """Normalise with the mean and variance over all processes. Update the running statistics as torch does."""
    axes = [0, *range(2, x.dim())]
    x32 = x if x.dtype == torch.float64 else x.float()  # x in float32, or unchanged if x is float64
    count = x.numel() // x.shape[1]
    mean = x32.mean(axes)
    squares = (x32 - _broadcast_to(mean, x)).square().sum(axes)
    rows = all_gather_rows(torch.cat([mean, squares, mean.new_full((1,), count)]))
    means, sums, counts = rows[:, : len(mean)], rows[:, len(mean) : -1], rows[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    # deviations within each process, plus deviations between the means of the processes
    squares = (sums + counts * (means - mean).square()).sum(0)
    if norm.track_running_stats:
        _update_running_statistics(norm, mean.detach(), (squares / (total - 1)).detach())
    y = (x32 - _broadcast_to(mean, x)) * _broadcast_to(torch.rsqrt(squares / total + norm.eps), x)
    if norm.affine:
        y = y * _broadcast_to(norm.weight, x) + _broadcast_to(norm.bias, x)
    return y.to(x.dtype)


def _broadcast_to(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


@torch.no_grad()
def _update_running_statistics(norm: Norm, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean.to(norm.running_mean), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var), norm.momentum)


def convert_sync_batch_norm(model: nn.Module) -> None:
    """Replace the batch norms of a network by synchronized ones. Parameters and names stay the same."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            sync_class = SYNC_BATCH_NORM_CLASSES.get(type(child))
            if sync_class is None:
                continue
            assert isinstance(child, Norm)
            sync_norm = sync_class(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            sync_norm._parameters.update(child._parameters)
            sync_norm._buffers.update(child._buffers)
            sync_norm.train(child.training)
            setattr(parent, name, sync_norm)


@contextmanager
def normalize_locally(model: nn.Module) -> Iterator[None]:
    """Inside this context, synchronized batch norms only use the images of their own process, and send no messages."""
    norms = [m for m in model.modules() if isinstance(m, SyncBatchNorm1d | SyncBatchNorm2d)]
    for norm in norms:
        norm.is_synchronized = False
    try:
        yield
    finally:
        for norm in norms:
            norm.is_synchronized = True
