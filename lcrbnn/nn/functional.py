"""The sign function and the surrogate gradients that networks are trained with.

The derivative of the sign is 0 almost everywhere. So training replaces it in the backward pass by a surrogate. This
package calls the surrogate a slope: a function `slope(x, p, q)` whose value is used for d sign / dx. `p` and `q` are
optional tensors on which the slope depends, such as an annealed temperature or the scale of a filter. They are tensors
and not Python numbers. So a compiled or captured training step stays valid when a schedule changes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SlopeFunction = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def sign(x: Tensor) -> Tensor:
    """Return -1 where x < 0 and +1 elsewhere, in the dtype of x. Zero, minus zero and NaN become +1."""
    # Do not add .to(x.dtype). A cast without effect makes torch.compile (2.11) lose the gradient of the
    # autograd.Function around it.
    return torch.where(x < 0, x.new_full((), -1), x.new_full((), 1))


@torch.library.custom_op("lcrbnn::ranked", mutates_args=())
def sort_rows(rows: Tensor) -> Tensor:
    """Return each row of (n, m) in ascending order, without gradient.

    This is a custom operator, so that torch.compile does not generate the code of the sort itself. Generated sorts
    cannot be combined with other kernels, but the fused step requires this. torch 2.11 and 2.13 fail with "only
    supported in persistent reductions".
    """
    return rows.contiguous().sort(1).values


@sort_rows.register_fake
def _(rows: Tensor) -> Tensor:
    return torch.empty_like(rows, memory_format=torch.contiguous_format)


def identity_slope(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """Return 1 everywhere (the straight-through estimator), multiplied by p unless p is None."""
    return torch.ones_like(x) if p is None else p.expand_as(x)


def closed_clip_slope(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """Return 1 where |x| <= 1 and 0 elsewhere, multiplied by p unless p is None."""
    inside = (x.abs() <= 1).to(x.dtype)
    return inside if p is None else inside * p


def open_clip_slope(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """Return 1 where |x| < 1 and 0 elsewhere."""
    return (x.abs() < 1).to(x.dtype)


def approx_sign_slope(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """Return the slope of Bi-Real's ApproxSign: 2 - 2|x| where |x| < 1 and 0 elsewhere."""
    return (2 - 2 * x.abs()).clamp_min(0)


def tanh_slope(x: Tensor, t: Tensor | None, k: Tensor | None) -> Tensor:
    """Return the slope of IR-Net's error decay estimator: k t (1 - tanh(t x)^2)."""
    assert t is not None
    assert k is not None
    # The slope 1 - tanh(y)^2 is computed as 4 e / (1 + e)^2 with e = exp(-2 |y|). This formula is exact for large |y|
    # too, and exp is fast on a GPU.
    exp_minus_2y = torch.exp(-2 * (t * x).abs())
    return k * t * 4 * exp_minus_2y / (1 + exp_minus_2y).square()


def tent_slope(x: Tensor, t: Tensor | None, k: Tensor | None) -> Tensor:
    """Return the slope of RBNN: k max(0, sqrt(2) t - t^2 |x|)."""
    assert t is not None
    assert k is not None
    return k * (math.sqrt(2) * t - t * t * x.abs()).clamp_min(0)


class _SurrogateSign(torch.autograd.Function):
    # torch.func needs generate_vmap_rule, and a setup_context that is separate from forward.
    generate_vmap_rule = True

    # Three tensor arguments are written out because torch.compile cannot trace *args here.
    @staticmethod
    def forward(x: Tensor, slope: SlopeFunction, p: Tensor | None, q: Tensor | None) -> Tensor:
        return sign(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.slope, p, q = inputs
        ctx.save_for_backward(x, p, q)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, p, q = ctx.saved_tensors
        return grad * ctx.slope(x, p, q), None, None, None


def surrogate_sign(x: Tensor, slope: SlopeFunction, p: Tensor | None = None, q: Tensor | None = None) -> Tensor:
    """Return sign(x), exactly -1 or +1, with `slope(x, p, q)` as its gradient. p and q receive no gradient."""
    return _SurrogateSign.apply(x, slope, p, q)


class _SignWithSoftGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, soft: Tensor) -> Tensor:
        return sign(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def soft_sign(x: Tensor, soft: Tensor) -> Tensor:
    """Return sign(x), exactly -1 or +1, with the gradient of `soft`, a differentiable approximation of the sign."""
    return _SignWithSoftGradient.apply(x, soft)


class _ScaledGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(x: Tensor, num_elements: int) -> Tensor:
    """Return x with its gradient divided by sqrt(num_elements), the number of elements that share x.

    A learned level that a whole feature map shares collects the gradients of all elements of that map. With the
    learning rate of a weight, such a level would quickly diverge. Learned step size quantization (Esser et al. 2020)
    uses the same factor.
    """
    return _ScaledGradient.apply(x, num_elements**-0.5)
