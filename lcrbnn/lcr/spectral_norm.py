"""Spectral norms by power iteration (Algorithm 2).

The value after i steps is v_i^T RM v_{i-1}. If the start vector has length 1, the value approaches the largest
eigenvalue from below. After five steps from a random vector it is typically a few percent too small. Sometimes it is
only half as large, namely if the start vector is nearly orthogonal to the top eigenvector. If the start vector selects
the longest column, this is rare (docs/method.md has the measurement). For analysis, iterate until `res_stop`.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MIN_NORM = 1e-30  # lower limit of a norm, so that a zero matrix causes no division by zero


def draw_start_vector(size: int, seed: int = 0) -> Tensor:
    """Return a normally distributed vector, drawn with a seed.

    `slice_start_vector` takes start vectors of any length from it.
    """
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def slice_start_vector(drawn_vector: Tensor, length: int) -> Tensor:
    """Return the first `length` numbers of a drawn vector, scaled to norm 1. A vector that is too short is repeated."""
    if length > drawn_vector.shape[0]:
        drawn_vector = drawn_vector.repeat(-(-length // drawn_vector.shape[0]))
    start = drawn_vector[:length]
    return start / torch.linalg.vector_norm(start)


def pick_longest_column(matrices: Tensor) -> Tensor:
    """Return the unit vector (b, n) that selects the longest column of each matrix (b, m, n).

    With this start vector, the first step of power iteration gives a column of RM. That column usually has a large
    component along the top eigenvector.
    """
    longest = torch.linalg.vector_norm(matrices, dim=1).argmax(1, keepdim=True)
    return (torch.arange(matrices.shape[2], device=matrices.device) == longest).to(matrices.dtype)


def apply_matrices(matrices: Tensor, v: Tensor) -> Tensor:
    """Return the products (b, m) of each matrix (b, m, n) and its vector (b, n)."""
    if matrices.is_cuda:
        # A matrix product of a GPU library may round to fewer digits. It also cannot be fused with other operations.
        return (matrices * v[:, None, :]).sum(2)
    return (matrices @ v[..., None])[..., 0]


def apply_retention_matrix(matrices: Tensor, v: Tensor, *, squared: bool) -> Tensor:
    """Return RM v for matrices M (b, m, n) and vectors (b, n), where RM is M^T M if `squared`, else M."""
    y = apply_matrices(matrices, v)
    return apply_matrices(matrices.mT, y) if squared else y


def power_iterate(matrices: Tensor, start: Tensor, iterations: int, *, squared: bool) -> tuple[Tensor, Tensor]:
    """Return the last two vectors (v_i, v_{i-1}) of Algorithm 2, each (b, n), after a fixed number of steps."""
    v = start.expand(matrices.shape[0], -1)
    previous = v
    for _ in range(iterations):
        previous = v
        v = apply_retention_matrix(matrices, v, squared=squared)
        v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(_MIN_NORM)
    return v, previous


def rayleigh_value(matrices: Tensor, v: Tensor, previous: Tensor, *, squared: bool) -> Tensor:
    """Return v_i^T RM v_{i-1}, (b,)."""
    return (v * apply_retention_matrix(matrices, previous, squared=squared)).sum(1)


def spectral_norm(
    matrices: Tensor,
    *,
    squared: bool,
    res_stop: float = 1e-6,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> tuple[Tensor, int]:
    """Return the largest eigenvalue of each RM, (b,), and the number of steps until the stop condition of Algorithm 2.

    The iteration stops when |v_{i+1} - v_i| < res_stop for every matrix. The value is also correct if the two largest
    eigenvalues are equal. If they differ only by rounding errors, the iteration may run until max_iterations.
    """
    num_matrices, _, size = matrices.shape
    v = slice_start_vector(draw_start_vector(size, seed).to(matrices), size).expand(num_matrices, -1)
    previous, num_iterations = v, 0
    while num_iterations < max_iterations:
        previous = v
        v, _ = power_iterate(matrices, previous, 1, squared=squared)
        num_iterations += 1
        if bool((torch.linalg.vector_norm(v - previous, dim=1) < res_stop).all()):
            break
    return rayleigh_value(matrices, v, previous, squared=squared), num_iterations
