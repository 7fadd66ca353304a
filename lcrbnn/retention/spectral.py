"""Spectral norms by power iteration (Algorithm 2).

The value after i steps is v_i^T RM v_{i-1}. From a start of unit length it never exceeds the largest eigenvalue and
approaches it from below. Five steps from a random start come out low by some percent as a rule, and by half now and
then, where the start happens to be nearly orthogonal to what it looks for; from the heaviest column they rarely do
(docs/method.md has the measurement). For analysis, iterate to `res_stop`.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-30  # below it a product is that of a zero matrix


def random_start(size: int, seed: int = 0) -> Tensor:
    """A seeded normal vector. The start of length n is the first n entries, scaled to length 1: see `start_of`."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def start_of(pool: Tensor, length: int) -> Tensor:
    """The first `length` numbers of a drawn start, repeated if there are too few, as a unit vector."""
    if length > pool.shape[0]:
        pool = pool.repeat(-(-length // pool.shape[0]))
    start = pool[:length]
    return start / torch.linalg.vector_norm(start)


def heaviest_column(small: Tensor) -> Tensor:
    """For each matrix (b, m, n) the unit vector (b, n) that picks its longest column: a start that cannot be far off.

    The first step then gives that column of RM, which has a large part along the top eigenvector.
    """
    longest = torch.linalg.vector_norm(small, dim=1).argmax(1, keepdim=True)
    return (torch.arange(small.shape[2], device=small.device) == longest).to(small.dtype)


def applied(small: Tensor, v: Tensor) -> Tensor:
    """Each matrix (b, m, n) times its vector (b, n): (b, m)."""
    if small.is_cuda:  # a library's product of this shape may round to fewer digits, and nothing can be fused with it
        return (small * v[:, None, :]).sum(2)
    return (small @ v[..., None])[..., 0]


def step(small: Tensor, v: Tensor, *, squared: bool) -> Tensor:
    """RM v for a batch of matrices (b, m, n) and vectors (b, n); RM = small^T small if squared, else small itself."""
    y = applied(small, v)
    return applied(small.mT, y) if squared else y


def iterate(small: Tensor, start: Tensor, iterations: int, *, squared: bool) -> tuple[Tensor, Tensor]:
    """The last two vectors (v_i, v_{i-1}) of Algorithm 2, each (b, n), after a fixed number of steps."""
    v = start.expand(small.shape[0], -1)
    before = v
    for _ in range(iterations):
        before = v
        v = step(small, v, squared=squared)
        v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(_TINY)
    return v, before


def value(small: Tensor, v: Tensor, before: Tensor, *, squared: bool) -> Tensor:
    """v_i^T RM v_{i-1}, (b,), from the small matrix."""
    return (v * step(small, before, squared=squared)).sum(1)


def spectral_norm(
    small: Tensor,
    *,
    squared: bool,
    res_stop: float = 1e-6,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> tuple[Tensor, int]:
    """Algorithm 2 to its stop condition: the largest eigenvalue of each RM, (b,), and the number of steps it took.

    Stops when every |v_{i+1} - v_i| < res_stop. Two equal top eigenvalues do not hinder the value; a gap of nothing but
    rounding may use up max_iterations, whose value is then returned.
    """
    v = start_of(random_start(small.shape[-1], seed).to(small), small.shape[-1]).expand(small.shape[0], -1)
    before, count = v, 0
    while count < max_iterations:
        before = v
        v, _ = iterate(small, before, 1, squared=squared)
        count += 1
        if bool((torch.linalg.vector_norm(v - before, dim=1) < res_stop).all()):
            break
    return value(small, v, before, squared=squared), count
