"""The sign with a side for zero, and the made-up gradients that let a network learn through it.

A slope is a function `slope(x, p, q)` that returns what backward uses for d sign / dx; `p` and `q` are tensors that it
may need (an annealing state, a filter's scale) or None. They are tensors, not numbers, so that a compiled or captured
training step does not change when a schedule moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Slope = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def sign(x: Tensor) -> Tensor:
    """Return -1 where x < 0, otherwise +1, in the dtype of x. Zero and minus zero are +1; so is NaN."""
    # No .to(x.dtype) here: where it changes nothing, torch 2.11's compiler drops the gradient of a Function around it.
    return torch.where(x < 0, x.new_full((), -1), x.new_full((), 1))


@torch.library.custom_op("lcrbnn::ranked", mutates_args=())
def ranked(rows: Tensor) -> Tensor:
    """Each row of (n, m), sorted; without gradient. For the compiler a call of its own.

    The code that it would make of a sort itself cannot be combined with other kernels, as a lean step's are: torch 2.11
    and 2.13 give up with "only supported in persistent reductions".
    """
    return rows.contiguous().sort(1).values


@ranked.register_fake
def _(rows: Tensor) -> Tensor:
    return torch.empty_like(rows, memory_format=torch.contiguous_format)


def straight(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """The straight-through slope: 1 everywhere, times p if there is one."""
    return torch.ones_like(x) if p is None else p.expand_as(x)


def clip_closed(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """1 where |x| <= 1, else 0, times p if there is one."""
    inside = (x.abs() <= 1).to(x.dtype)
    return inside if p is None else inside * p


def clip_open(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """1 where |x| < 1, else 0."""
    return (x.abs() < 1).to(x.dtype)


def triangle(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """Bi-Real's ApproxSign slope: 2 - 2|x| where |x| < 1, else 0."""
    return (2 - 2 * x.abs()).clamp_min(0)


def tanh_slope(x: Tensor, t: Tensor | None, k: Tensor | None) -> Tensor:
    """IR-Net's error decay estimator: k t (1 - tanh(t x)^2)."""
    assert t is not None
    assert k is not None
    e = torch.exp(-2 * (t * x).abs())  # 1 - tanh(y)^2 = 4 e / (1 + e)^2: exact far out, and a GPU has a fast exp
    return k * t * 4 * e / (1 + e).square()


def tent_slope(x: Tensor, t: Tensor | None, k: Tensor | None) -> Tensor:
    """RBNN's slope: k max(0, sqrt(2) t - t^2 |x|)."""
    assert t is not None
    assert k is not None
    return k * (math.sqrt(2) * t - t * t * x.abs()).clamp_min(0)


class _SurrogateSign(torch.autograd.Function):
    generate_vmap_rule = True  # for torch.func, as is setup_context apart from forward

    # Exactly these four arguments: torch.compile traces a fixed arity, not *args.
    @staticmethod
    def forward(x: Tensor, slope: Slope, p: Tensor | None, q: Tensor | None) -> Tensor:
        return sign(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.slope, p, q = inputs
        ctx.save_for_backward(x, p, q)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, p, q = ctx.saved_tensors
        return grad * ctx.slope(x, p, q), None, None, None


def surrogate_sign(x: Tensor, slope: Slope, p: Tensor | None = None, q: Tensor | None = None) -> Tensor:
    """Return sign(x), exactly +-1, whose gradient is `slope(x, p, q)`; nothing flows to p and q."""
    return _SurrogateSign.apply(x, slope, p, q)


class _DressedSign(torch.autograd.Function):
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


def dressed_sign(x: Tensor, soft: Tensor) -> Tensor:
    """Return sign(x), exactly +-1, with the gradient of `soft`, a curve of the same shape that torch goes through."""
    return _DressedSign.apply(x, soft)


class _Slowed(torch.autograd.Function):
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


def slowed(x: Tensor, numbers: int) -> Tensor:
    """Return x, whose gradient is divided by the root of how many numbers share it.

    A level that a whole map shares collects the gradient of all of it, and at the learning rate of a weight leaves for
    good; so does learned step size quantisation (Esser et al. 2020).
    """
    return _Slowed.apply(x, numbers**-0.5)
