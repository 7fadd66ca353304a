"""Faster modules for a compiled step, which are fused batch norm, memory-efficient hardtanh and mean pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.nn.kernels.batch_norm import forward_statistics, make_arrival_counters, normalize, supports_batch_norm


@contextmanager
def swap_module_class(modules: Sequence[nn.Module], module_class: type[nn.Module]) -> Iterator[None]:
    """Inside this context, the modules have another class, which must not have more state than the original class."""
    original_classes = [type(module) for module in modules]
    for module in modules:
        module.__class__ = module_class
    try:
        yield
    finally:
        for module, original_class in zip(modules, original_classes, strict=True):
            module.__class__ = original_class


class FusedBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with fused kernels inside a compiled step. Parameters, statistics and names stay the same."""

    forward_counters: Tensor  # counters of the kernel programs that have ended; checkpoints do not contain them
    backward_counters: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return x, (n, c, h, w), normalised per channel."""
        # running statistics are frozen during a measurement
        updates_statistics = self.training and self.track_running_stats
        if not (updates_statistics and torch.compiler.is_compiling() and supports_batch_norm(x)):
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        values, weight, bias = x.detach(), self.weight.detach(), self.bias.detach()
        with torch.no_grad():
            statistics = forward_statistics(
                values,
                weight,
                bias,
                self.running_mean,
                self.running_var,
                self.eps,
                self.momentum,
                self.forward_counters,
            )
        return normalize(x, self.weight, self.bias, statistics, self.backward_counters)


@contextmanager
def use_fused_batch_norms(model: nn.Module) -> Iterator[None]:
    """Inside this context, the batch norms of a network have the class FusedBatchNorm2d."""
    norms = [norm for norm in model.modules() if type(norm) is nn.BatchNorm2d and _can_be_fused(norm)]
    with swap_module_class(norms, FusedBatchNorm2d):
        for norm in norms:
            assert isinstance(norm, FusedBatchNorm2d)
            if "forward_counters" not in norm.__dict__ or norm.forward_counters.device != norm.weight.device:
                norm.forward_counters, norm.backward_counters = (
                    make_arrival_counters(norm.num_features, norm.weight.device) for _ in range(2)
                )
        yield


def _can_be_fused(norm: nn.BatchNorm2d) -> bool:
    return norm.affine and norm.track_running_stats and norm.momentum is not None


class _ClipFunction(torch.autograd.Function):
    """Clamp that saves only its result. The gradient is zero exactly where the result equals a bound."""

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


class MemoryEfficientHardtanh(nn.Hardtanh):
    """nn.Hardtanh that saves its result, which the next layer also saves, instead of a mask or the input.

    For 16-bit activations, torch would also compute the gradient in float32 and write it to memory. Here, values and
    gradients are those of nn.Hardtanh in 16 bits.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return x with each element clamped to the bounds."""
        y: Tensor = _ClipFunction.apply(input, self.min_val, self.max_val)
        return y


def use_memory_efficient_hardtanhs(model: nn.Module) -> AbstractContextManager[None]:
    """Inside this context, the hardtanhs of a network have the class MemoryEfficientHardtanh."""
    return swap_module_class([m for m in model.modules() if type(m) is nn.Hardtanh], MemoryEfficientHardtanh)


class MeanPool2d(nn.AdaptiveAvgPool2d):
    """nn.AdaptiveAvgPool2d(1) computed as a mean.

    The backward pass of torch's pool fills a buffer with zeros and copies it. torch 2.11's compiler for CPUs may even
    write these zeros after the buffer was used.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the mean of each channel, which turns (n, c, h, w) into (n, c, 1, 1)."""
        # The mean over both spatial axes is the same number, and its gradient is one broadcast.
        return input.mean((2, 3), keepdim=True)


def use_mean_pools(model: nn.Module) -> AbstractContextManager[None]:
    """Inside this context, the pools of a network to a single pixel have the class MeanPool2d."""
    pools = [m for m in model.modules() if type(m) is nn.AdaptiveAvgPool2d and m.output_size in (1, (1, 1))]
    return swap_module_class(pools, MeanPool2d)
